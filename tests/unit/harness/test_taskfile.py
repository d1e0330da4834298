"""Task folders are written whole, checked when read, and copied without what a candidate must not see."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from llm4llm.harness import taskfile, values
from llm4llm.harness.ambient import Ambient, Randomness
from llm4llm.harness.pickling import NotCarried
from llm4llm.harness.taskfile import BadTask

REQUIRED = ("calls.pt", "module.pkl", "reference.pt", "definitions.json")


def attention() -> nn.MultiheadAttention:
    torch.manual_seed(3)
    return nn.MultiheadAttention(8, 2).eval()


def records(module: nn.Module, count: int = 2) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Calls with a view of a shared buffer, a parameter and a submodule among their arguments."""
    calls, references = [], []
    for index in range(count):
        buffer = torch.randn(6, 4, 8)
        x = buffer[1:4].transpose(0, 1)
        kwargs = {"rest": buffer[4:], "weight": module.in_proj_weight, "inner": module.out_proj, "index": index}
        kept = values.snapshot(values.kept_by(module))
        inputs = values.snapshot(((x, x, x), kwargs))
        call = {"args": inputs[0], "kwargs": inputs[1], "kept": kept, "phase": "forward", "rng": Randomness.now(), "instance": "layers.0"}
        with torch.no_grad():
            result = module(x, x, x)
        calls.append(call)
        references.append({"result": result, "args": inputs[0], "kwargs": inputs[1], "kept": kept})
    return calls, references


def written(folder: Path, module: nn.Module | None = None) -> dict[str, Any]:
    module = module or attention()
    calls, references = records(module)
    return taskfile.write_task(folder, {"id": "t_1", "phase": "forward"}, module, calls, references, Ambient.now().to_json(), sys.path)


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    module = attention()
    facts = written(tmp_path / "task", module)
    task = taskfile.read_task(tmp_path / "task")
    references = taskfile.read_references(tmp_path / "task", task.module)
    assert task.facts == facts | {"file_sha256": facts["file_sha256"]}
    assert (task.facts["id"], task.facts["folder"]) == ("t_1", str(tmp_path / "task"))
    assert task.ambient == Ambient.now().to_json()
    assert task.sys_path == sys.path
    assert module.state_dict().keys() == task.module.state_dict().keys()
    assert all(torch.equal(weight, task.module.state_dict()[name]) for name, weight in module.state_dict().items())
    for call, reference in zip(task.calls, references, strict=True):
        args, kwargs, kept = values.snapshot((call["args"], call["kwargs"], call["kept"]))
        assert kwargs["weight"] is task.module.in_proj_weight
        assert kwargs["inner"] is task.module.out_proj
        assert args[0].stride() == (8, 32, 1)
        assert args[0].untyped_storage().data_ptr() == kwargs["rest"].untyped_storage().data_ptr()
        values.restore(task.module, kept)
        with torch.no_grad():
            result = task.module(*args)
        assert torch.equal(result[0], reference["result"][0])
        assert reference["kwargs"]["inner"] is task.module.out_proj
    assert "class MultiheadAttention" in (tmp_path / "task" / "source.py.txt").read_text()


def test_hooks_and_wrappers_of_the_live_module_are_left_behind(tmp_path: Path) -> None:
    module = attention()
    module.register_forward_hook(lambda *_: None)
    module.out_proj.register_forward_pre_hook(lambda *_: None)
    module._old_forward = module.forward  # as accelerate does
    module.forward = lambda *args, **kwargs: None  # type: ignore[method-assign]
    calls, references = records(attention())
    calls, references = [{**one, "kwargs": {}} for one in calls], [{**one, "kwargs": {}} for one in references]
    taskfile.write_task(tmp_path / "task", {"id": "t_1"}, module, calls, references, Ambient.now().to_json(), [])
    read = taskfile.read_task(tmp_path / "task").module
    assert not any(name in vars(read) for name in ("forward", "_old_forward"))
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in read.modules())
    assert module._forward_hooks, "the live module keeps its hooks"


def test_a_copy_for_a_candidate_has_no_references(tmp_path: Path) -> None:
    written(tmp_path / "task")
    taskfile.copy_without_references(tmp_path / "task", tmp_path / "copy")
    assert not (tmp_path / "copy" / "reference.pt").exists()
    assert str(tmp_path / "task") not in (tmp_path / "copy" / "task.json").read_text()
    assert len(taskfile.read_task(tmp_path / "copy").calls) == 2
    with pytest.raises(BadTask, match=r"reference\.pt is missing"):
        taskfile.read_references(tmp_path / "copy")


def _truncate(folder: Path) -> None:
    with (folder / "calls.pt").open("r+b") as stream:
        stream.truncate(100)


def _change(folder: Path) -> None:
    content = bytearray((folder / "module.pkl").read_bytes())
    content[len(content) // 2] ^= 1
    (folder / "module.pkl").write_bytes(bytes(content))


def _edit(folder: Path, **changes: Any) -> None:
    facts = json.loads((folder / "task.json").read_text())
    facts.update(changes)
    (folder / "task.json").write_text(json.dumps(facts))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda folder: (folder / "calls.pt").unlink(), "calls.pt is missing"),
        (lambda folder: (folder / "definitions.json").unlink(), "definitions.json is missing"),
        (lambda folder: (folder / "task.json").unlink(), "has no task.json"),
        (lambda folder: (folder / "task.json").write_text("{"), "can't be read"),
        (lambda folder: (folder / "task.json").write_text("[]"), "lists no files"),
        (_truncate, "calls.pt is not what was written there"),
        (_change, "module.pkl is not what was written there"),
        (lambda folder: (folder / "source.py.txt").write_text("x"), "source.py.txt is not what was written there"),
        (lambda folder: _edit(folder, format=99), "has format 99"),
        (lambda folder: _edit(folder, file_sha256={}), "does not list calls.pt"),
        (lambda folder: _edit(folder, file_sha256=dict.fromkeys(["../x", *REQUIRED], "0")), "lies outside the folder"),
    ],
)
def test_damage_is_named_with_what_to_do(tmp_path: Path, damage: Any, words: str) -> None:
    written(tmp_path / "task")
    damage(tmp_path / "task")
    with pytest.raises(BadTask, match=words) as caught:
        taskfile.read_task(tmp_path / "task")
    assert "extract" in str(caught.value)


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadTask, match="is no folder"):
        taskfile.read_task(tmp_path / "nothing")


def test_content_that_does_not_load_here_names_the_environment(tmp_path: Path) -> None:
    written(tmp_path / "task")
    for name in ("module.pkl", "calls.pt"):
        torch.save([1, 2], tmp_path / "task" / name)
        facts = json.loads((tmp_path / "task" / "task.json").read_text())
        hashes = facts["file_sha256"] | {name: taskfile.file_sha256(tmp_path / "task" / name)}
        _edit(tmp_path / "task", file_sha256=hashes)
        with pytest.raises(BadTask, match="holds a list and no module" if name == "module.pkl" else "is no list of records"):
            taskfile.read_task(tmp_path / "task")
        written(tmp_path / "task")


def test_a_task_that_can_not_be_written_leaves_no_folder(tmp_path: Path) -> None:
    module = attention()
    module.rows = (row for row in range(3))  # type: ignore[assignment]
    calls, references = records(attention())
    with pytest.raises(NotCarried, match="generator"):
        taskfile.write_task(tmp_path / "task", {"id": "t_1"}, module, calls, references, Ambient.now().to_json(), [])
    assert not (tmp_path / "task").exists()
