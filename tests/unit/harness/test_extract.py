"""Task folders of a live workload: which calls are in them, what they carry, and what is refused."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from recorded import recorded, workload_of
from torch import nn

from llm4llm.harness import taskfile, values
from llm4llm.harness.captures import is_stand_in
from llm4llm.harness.extract import extract
from llm4llm.harness.families import all_families
from llm4llm.harness.workload import Workload

REPOSITORY = Path(__file__).resolve().parents[3]
WIDTH, DEPTH = 16, 3

CHECK = """
import sys
from pathlib import Path
import torch
from llm4llm.harness import taskfile, values
from llm4llm.harness.ambient import Ambient
from llm4llm.harness.captures import same_part
task = taskfile.read_task(Path(sys.argv[1]))
module = task.module
for call, reference in zip(task.calls, taskfile.read_references(Path(sys.argv[1]), module), strict=True):
    args, kwargs, kept = values.snapshot((call["args"], call["kwargs"], call["kept"]))
    values.restore(module, kept)
    call["rng"].restore()
    with Ambient.from_json(task.ambient).applied():
        result = type(module).forward(module, *args, **kwargs)
    after = {"result": result, "args": args, "kwargs": kwargs, "kept": values.kept_by(module)}
    print(*(same_part(reference, after, part) for part in after))
"""


class Store:
    """Keys of every layer, as one object that all layers get."""

    def __init__(self) -> None:
        self.rows: list[torch.Tensor | None] = [None] * DEPTH
        self.length = 0

    def append(self, layer: int, keys: torch.Tensor) -> torch.Tensor:
        held = self.rows[layer]
        self.rows[layer] = keys if held is None else torch.cat([held, keys], 1)
        self.length = self.rows[DEPTH - 1].shape[1] if self.rows[DEPTH - 1] is not None else 0
        return self.rows[layer]  # type: ignore[return-value]


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(1 + 0.3 * torch.randn(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.weight


class Layer(nn.Module):
    def __init__(self, index: int) -> None:
        super().__init__()
        self.index, self.seen = index, 0
        self.norm, self.mix = Norm(), nn.Linear(WIDTH, WIDTH)
        self.register_buffer("table", torch.randn(64, 64))  # kept, never changed

    def forward(self, x: torch.Tensor, store: Store | None = None) -> torch.Tensor:
        self.seen += 1
        y = self.mix(self.norm(x)) + self.table[0, :WIDTH]
        if store is None:
            return x + y
        keys = store.append(self.index, y)
        return x + torch.softmax(y @ keys.transpose(1, 2), -1) @ keys


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer(index) for index in range(DEPTH)])
        self.unused = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor, store: Store | None = None) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x, store)
        return x

    @torch.no_grad()
    def generate(self, x: torch.Tensor, steps: int) -> torch.Tensor:
        store = Store()
        y = self(x, store)
        for _ in range(steps):
            y = self(torch.tanh(y[:, -1:]), store)
        return y


def model() -> Model:
    torch.manual_seed(0)
    return Model().eval()


def workload(live: Model) -> Workload:
    """A long prompt, a short batch and a plain forward."""
    with torch.no_grad():
        drivers = [
            recorded(live, "generate", torch.randn(1, 300, WIDTH), 9),
            recorded(live, "generate", torch.randn(3, 40, WIDTH), 4),
            recorded(live, "forward", torch.randn(2, 5, WIDTH)),
        ]
    return workload_of(*drivers)


def hotspots(of: Workload, name: str, *phases: str) -> list[str]:
    family = next(family for found in all_families(of).values() for family in found if family.module_class == name)
    return [family.hotspot_id(phase) for phase in phases]  # type: ignore[arg-type]


def extracted(of: Workload, out: Path, wanted: list[str], **options: Any) -> list[dict[str, Any]]:
    return list(extract(of, {"hotspots": wanted, "out": str(out), **options})["tasks"])


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Task folders of one layer, by phase."""
    of = workload(model())
    wanted = hotspots(of, "Layer", "prefill", "decode", "forward")
    answers = extracted(of, tmp_path_factory.mktemp("tasks"), wanted, shares={wanted[1]: 0.25})
    assert [one.get("refusal") for one in answers] == [None] * 3
    return {one["phase"]: Path(one["folder"]) for one in answers}


def sizes(folder: Path) -> list[tuple[int, ...]]:
    return [tuple(call["args"][0].shape) for call in taskfile.read_task(folder).calls]


def test_calls_cover_the_extremes_over_all_driver_calls(folders: dict[str, Path]) -> None:
    assert sizes(folders["prefill"]) == [(1, 300, WIDTH), (3, 40, WIDTH)]
    assert sizes(folders["forward"]) == [(2, 5, WIDTH)]
    decode = taskfile.read_task(folders["decode"])
    lengths = [(call["args"][0].shape[0], call["args"][1].rows[0].shape[1]) for call in decode.calls]
    assert {(1, 308), (3, 40)} <= set(lengths)
    assert len(lengths) <= 8
    assert (decode.facts["calls"], decode.facts["calls_seen"], decode.facts["share"]) == (len(lengths), 13, 0.25)
    assert {call["instance"] for call in decode.calls} == {"layers.0"}
    assert {call["phase"] for call in decode.calls} == {"decode"}


def test_other_layers_caches_are_there_in_form_only(folders: dict[str, Path]) -> None:
    decode = taskfile.read_task(folders["decode"])
    references = taskfile.read_references(folders["decode"], decode.module)
    long = next(index for index, call in enumerate(decode.calls) if call["args"][1].rows[0].shape[1] == 308)
    rows = decode.calls[long]["args"][1].rows
    assert [is_stand_in(row) for row in rows] == [False, True, True]
    assert rows[1].shape == (1, 308, WIDTH)
    after = references[long]["args"][1].rows
    assert [is_stand_in(row) for row in after] == [False, True, True]
    assert after[0].shape == (1, 309, WIDTH)
    assert (folders["decode"] / "calls.pt").stat().st_size < 120 << 10


def test_a_table_that_the_module_keeps_is_stored_once(folders: dict[str, Path]) -> None:
    task = taskfile.read_task(folders["decode"])
    tables = {call["kept"][""]["buffers"]["table"].untyped_storage().data_ptr() for call in task.calls}
    assert len(tables) == 1
    assert len({call["kept"][""]["plain"]["seen"] for call in task.calls}) == len(task.calls)


def test_a_fresh_process_repeats_every_call_bit_by_bit(folders: dict[str, Path]) -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(Path(__file__).parent)]),
        "OMP_NUM_THREADS": str(torch.get_num_threads()),
    }
    for folder in folders.values():
        command = [sys.executable, "-c", CHECK, str(folder)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        assert set(done.stdout.split()) == {"True"}
        assert len(done.stdout.splitlines()) == json.loads((folder / "task.json").read_text())["calls"]


def test_the_live_model_is_as_before_and_a_rerun_gives_the_same_ids(tmp_path: Path) -> None:
    live = model()
    of = workload(live)
    before = values.snapshot([values.kept_by(live), dict(live.state_dict())])
    wanted = hotspots(of, "Layer", "decode") + hotspots(of, "Norm", "prefill")
    rng = torch.get_rng_state()
    first = extracted(of, tmp_path, wanted)
    assert torch.equal(rng, torch.get_rng_state())
    assert not any("forward" in vars(part) for part in live.modules())
    after = [values.kept_by(live), dict(live.state_dict())]
    assert [path for path, _ in values.leaves(before)] == [path for path, _ in values.leaves(after)]
    again = extracted(workload(model()), tmp_path / "again", wanted)
    assert [one["id"] for one in first] == [one["id"] for one in again]
    assert len({one["id"] for one in first}) == 2


def test_refusals_say_what_is_wrong(tmp_path: Path) -> None:
    live = model()
    of = workload(live)
    wanted = ["h_nothing", *hotspots(of, "Linear", "encode"), *hotspots(of, "Layer", "decode")]
    answers = extracted(of, tmp_path, wanted, max_bytes=1 << 10)
    assert [one["refusal"]["code"] for one in answers] == ["unknown_hotspot", "not_called", "too_large"]
    assert list(tmp_path.iterdir()) == []
    live.layers[0].callback = lambda x: x  # type: ignore[assignment]
    [norm, layer] = hotspots(of, "Norm", "forward"), hotspots(of, "Layer", "forward")
    live.layers[0].norm.forward = live.layers[1].norm.forward  # type: ignore[union-attr,method-assign]
    answers = extracted(of, tmp_path, [*norm, *layer])
    assert answers[0]["refusal"]["code"] == "instance_forward"
    assert answers[1].get("refusal", {"code": "not_carried"})["code"] == "not_carried"


def test_a_driver_call_that_fails_does_not_take_the_others_along(tmp_path: Path) -> None:
    live = model()
    of = workload_of(recorded(live, "generate", torch.randn(1, 3, 5), 2), recorded(live, "forward", torch.randn(2, 4, WIDTH)))
    [forward, decode] = hotspots(of, "Norm", "forward", "decode")
    answers = extracted(of, tmp_path, [forward, decode])
    assert answers[0]["calls"] == 1
    assert answers[1]["refusal"]["code"] == "not_called"
    assert "RuntimeError" in answers[1]["refusal"]["text"]
