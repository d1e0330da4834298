"""Facts about recorded calls as the parent gets them."""

import enum
import json

import pytest
import torch
from torch import nn
from watching import Drawer, Watched, echo

from llm4llm.harness.ambient import Ambient, Randomness
from llm4llm.harness.signatures import MAX_CHARACTERS, call_signature, described, loop_signature
from llm4llm.harness.storing import Budget, TooLarge
from llm4llm.harness.workload import MAX_NOTES, MAX_WALL_SAMPLES
from llm4llm.schema.capture import DriverCall, Root

X = torch.ones(2, 4)


def test_json_has_the_fields_of_the_stored_types() -> None:
    with Watched() as seen, torch.no_grad():
        echo().generate(X)
        echo().train()(X)
    facts = json.loads(json.dumps(seen.workload.to_json()))
    roots, drivers = [Root(**root) for root in facts["roots"]], [DriverCall(**driver) for driver in facts["drivers"]]
    assert [root.parameters for root in roots] == [20, 20]
    assert roots[0].fingerprint == roots[1].fingerprint
    assert (roots[0].dtypes, roots[0].devices, roots[1].training) == (("float32",), ("cpu",), True)
    assert [(driver.root, driver.refusal is None) for driver in drivers] == [("r0", True), ("r1", False)]
    assert {"driver"} == set(seen.events[0])


def test_many_calls_take_bounded_room() -> None:
    with Watched() as seen, torch.no_grad():
        model = nn.Linear(4, 4).eval()
        for _ in range(MAX_WALL_SAMPLES + 10):
            model(X)
    driver = seen.workload.drivers[0]
    assert driver.count == MAX_WALL_SAMPLES + 10
    assert len(driver.wall_ms) == MAX_WALL_SAMPLES
    assert len(driver.examples) == 2


def test_many_models_are_not_all_kept() -> None:
    with Watched() as seen, torch.no_grad():
        for _ in range(70):
            nn.Linear(4, 4).eval()(X)
    assert len(seen.workload.roots) == 64
    assert "many_roots" in seen.notes()


def test_many_kinds_of_calls_and_many_notes_are_told_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llm4llm.harness.recording.MAX_KINDS", 3)
    with Watched() as seen, torch.no_grad():
        model = nn.Linear(4, 4).eval()
        for rows in range(1, 8):
            model(torch.ones(rows, 4))
        for number in range(500):
            seen._recorder.note("odd", f"{number}" * 2_000)
    drivers = seen.workload.drivers
    assert [driver.count for driver in drivers] == [1, 1, 1, 4]
    assert (drivers[3].signature, drivers[3].refusal and drivers[3].refusal.code) == ("others", "many_kinds")
    assert len(drivers[3].wall_ms) == 4
    assert seen._recorder._budget.host_used == sum(example.stored_bytes[0] for driver in drivers for example in driver.examples)
    assert len(seen.workload.notes) == MAX_NOTES
    assert seen.workload.notes[-1].code == "many_notes"
    assert max(len(note.text) for note in seen.workload.notes) <= 2_000


def test_inputs_beyond_the_budget_are_refused() -> None:
    with Watched() as seen, torch.no_grad():
        seen._recorder._budget = Budget(host_limit=1000)
        model = nn.Linear(4, 4).eval()
        model(torch.ones(100, 4))
        model(X)
        model(torch.ones(3, 4))
    assert [code for _, _, code in seen.drivers()] == ["too_large", None, None]


def test_room_is_given_back() -> None:
    budget = Budget(host_limit=100)
    budget.take(90, 0)
    with pytest.raises(TooLarge, match="MiB"):
        budget.take(20, 0)
    budget.give_back(90, 0)
    budget.take(100, 0)
    assert budget.host_used == 100


class _Colour(enum.Enum):
    RED = 1


def test_signatures_are_the_same_in_every_run() -> None:
    first, second = Drawer(), Drawer()
    for drawer in (first, second):
        drawer.kept = [torch.rand(2, 3), torch.rand(2, 3)]
    assert described(first) == described(second) == "Drawer(2 x float32[2,3], 0)"
    assert described(_Colour.RED) == "_Colour(_Colour)"
    assert described(object()) == "object(object)"
    assert described("x" * 30) == "str[30]"
    assert described([1] * 40) == "[40 x 1]"
    assert described(torch.ones(4, 4).T[1:]) == "float32[3,4]/1,4"
    assert described(nn.Linear(1, 1)) == "Linear"


def test_signatures_are_short_but_tell_apart() -> None:
    ambient = Ambient()
    long = [call_signature(tuple(torch.ones(size) for size in range(1, count)), {}, ambient) for count in (90, 91)]
    assert all(len(text) <= MAX_CHARACTERS for text in long)
    assert long[0] != long[1]
    assert loop_signature(["a", "b", "c"]) != loop_signature(["a", "d", "c"])


def test_ambient_state_survives_json() -> None:
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.float16):
        now = Ambient.now()
    back = Ambient.from_json(json.loads(json.dumps(now.to_json())))
    assert back == now
    with back.applied():
        assert Ambient.now() == now
    assert Ambient.now() != now


def test_randomness_is_shared_while_nobody_draws() -> None:
    first = Randomness.now()
    assert Randomness.now(first) is first
    torch.rand(1)
    assert Randomness.now(first) is not first
