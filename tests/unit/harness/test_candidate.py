import socket
import threading
from typing import Any

import pytest
import torch
from torch import nn

from llm4llm.harness.ambient import Ambient
from llm4llm.harness.candidate import surroundings_of
from llm4llm.harness.portrait import as_bytes, first_difference, from_bytes, leaf, portrait
from llm4llm.harness.serving import Server, poisoned
from llm4llm.harness.watchtower import ModuleRecord, Spy, process_state, state_changes
from llm4llm.harness.wire import Wire, WireClosed


class Doubler(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((3,), 2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


class Candidate:
    """A candidate module by its functions."""

    def __init__(self, **functions: Any) -> None:
        vars(self).update(functions)


def served(forward: Any, x: torch.Tensor, **others: Any) -> dict[str, Any]:
    module = type("Own", (Doubler,), {"forward": Doubler.forward})()
    spy = Spy(module)
    server = Server(Candidate(forward=forward, **others), module, {}, Ambient())  # type: ignore[arg-type]
    server.prepare()
    call = {"args": (x,), "kwargs": {}, "kept": {}, "rng": None, "scale": (0,)}
    server.call(call, spy)
    return server.call(call, spy)[0]


def rules(facts: dict[str, Any]) -> set[str]:
    return {one["rule"] for one in facts["violations"]}


def test_a_quiet_candidate_is_reported_as_it_is() -> None:
    x = torch.ones(2, 3)
    facts = served(lambda module, state, x: x * module.weight, x)
    assert rules(facts) == set()
    assert (facts["aliases"], facts["draws"], facts["declined"]) == ([], False, False)
    assert [(one["path"], one["blob"]) for one in facts["leaves"]] == [("result", 0), ("args[0]", None)]
    assert torch.equal(x, torch.ones(2, 3))


def test_what_a_call_does_besides() -> None:
    x = torch.ones(2, 3)
    kept = torch.ones(2, 3)
    assert rules(served(lambda module, state, x: kept, x)) == {"result_reused"}
    assert rules(served(lambda module, state, x: module(x), x)) == {"fallback"}
    assert served(lambda module, state, x: x.view(3, 2), x)["aliases"] == [("result", "args[0]")]
    assert served(lambda module, state, x: x + torch.rand(1), x)["draws"]
    assert [one["blob"] for one in served(lambda module, state, x: x.mul_(2) + 0, x)["leaves"]] == [0, 1]
    assert served(lambda module, state, x: x, x, accepts=lambda module, state, x: False)["declined"]
    with pytest.raises(TypeError, match="accepts returned a Tensor"):
        served(lambda module, state, x: x, x, accepts=lambda module, state, x: x.sum() > 0)


def test_poisoned_memory_holds_nan_and_the_switch_is_put_back() -> None:
    before = process_state()
    with poisoned(True):
        assert torch.empty(5).isnan().all()
        assert torch.empty_like(torch.ones(5)).isnan().all()
    assert state_changes(before, process_state()) == []


def test_process_state_is_compared() -> None:
    before = process_state()
    torch.set_num_threads(before["number of threads"] + 1)
    try:
        assert [one.rule for one in state_changes(before, process_state())] == ["process_state"]
    finally:
        torch.set_num_threads(before["number of threads"])


@pytest.mark.parametrize(
    "change",
    [
        lambda module: module.weight.data.mul_(2),
        lambda module: setattr(module, "extra", 1),
        lambda module: setattr(module, "weight", nn.Parameter(module.weight.detach().clone())),
        lambda module: module.register_forward_hook(lambda *_: None),
        lambda module: module.register_buffer("more", torch.ones(1)),
        lambda module: setattr(module, "forward", lambda x: x),
    ],
)
def test_changes_of_the_module_are_seen(change: Any) -> None:
    module = Doubler()
    record = ModuleRecord(module)
    assert record.changes() == []
    change(module)
    assert {one.rule for one in record.changes()} == {"module_changed"}


def test_own_poison_is_not_part_of_the_task() -> None:
    facts = {**Ambient.now().to_json(), "matmul": {"deterministic_algorithms": False, "cudnn_tf32": True}}
    assert surroundings_of(facts).matmul == {"cudnn_tf32": True}


def test_portraits_are_equal_for_equal_structure_alone() -> None:
    class Box:
        def __init__(self, item: object) -> None:
            self.item = item

    box = Box(1)

    def tree(value: object) -> Any:
        return portrait({"result": value})[0]

    assert first_difference(tree([1, {"a": (2.0, None)}]), tree([1, {"a": (2.0, None)}])) is None
    for left, right in [
        ([1], (1,)),
        ([1], [2]),
        ([1], [True]),
        ({"a": 1}, {"b": 1}),
        (Box(1), Box(2)),
        ([box, box], [box, Box(1)]),
        (0.0, -0.0),
    ]:
        assert first_difference(tree(left), tree(right)) is not None
    assert "instead of" in str(first_difference(tree((1, 2)), tree((1, "2"))))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64])
def test_tensors_travel_as_bytes(dtype: torch.dtype) -> None:
    tensor = torch.arange(6).reshape(2, 3).to(dtype)
    one = leaf("x", tensor.t())
    assert one.values is not None
    assert torch.equal(from_bytes(as_bytes(one.values), one.dtype, one.shape), tensor.t())
    with pytest.raises(ValueError, match="are no"):
        from_bytes(b"123", "float32", (2,))
    with pytest.raises(ValueError, match="no tensor"):
        from_bytes(b"", "load", (0,))


def wires(nonce: str, other: str) -> tuple[Wire, Wire]:
    left, right = socket.socketpair()
    return Wire(left, nonce), Wire(right, other)


def test_frames_carry_bytes_and_the_nonce() -> None:
    one, two = wires("secret", "secret")
    blob = bytes(range(256)) * 5000
    sender = threading.Thread(target=one.send, args=({"op": "x"}, [b"", blob]))
    sender.start()
    assert two.receive() == ({"op": "x"}, [b"", blob])
    sender.join()
    one.close()
    with pytest.raises(WireClosed):
        two.receive()


def test_frames_without_the_nonce_are_refused() -> None:
    one, two = wires("guess", "secret")
    one.send({"outcome": "passed"})
    with pytest.raises(WireClosed, match="nonce"):
        two.receive()
