from typing import Any

import pytest
import torch
from recorded import recorded, rooted
from torch import nn

from llm4llm.harness.attribution import Look, Row, attributed
from llm4llm.harness.bounds import Machine, bound
from llm4llm.harness.device_spans import Busy
from llm4llm.harness.families import Family, families
from llm4llm.harness.instrument import instrumented
from llm4llm.harness.spans import Entry, HostClock, Span
from llm4llm.harness.tally import Tally, Work
from llm4llm.harness.tolerance import CAP, allowance, error
from llm4llm.harness.windows import Enough


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(4, 8)
        self.two = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(self.one(x))


def found() -> list[Family]:
    return families(rooted(Pair()))


def look(device_ms: float | None, calls: int = 10) -> Look:
    """A root of 100 ms on the host: Linear 60, ReLU 30 and 10 of its own; on the device ReLU does most."""
    clock = HostClock({"": 0, "one": 1, "two": 2})
    clock.entries[("", "decode")] = Entry(calls=calls, host_s=0.1, wall_s=0.1)
    clock.spans = {
        (0, "decode"): Span(calls, 0.1, 0.01, paths={""}),
        (1, "decode"): Span(calls, 0.06, 0.06, paths={"one"}),
        (2, "decode"): Span(calls, 0.03, 0.03, paths={"two"}),
    }
    if device_ms is None:
        return Look(clock)
    each = device_ms / calls
    windows = [{0: Busy(each, 0.0), 1: Busy(0.25 * each, 0.25 * each), 2: Busy(0.75 * each, 0.75 * each)} for _ in range(2)]
    return Look(clock, device={("", "decode"): windows})


def parts(rows: list[Row]) -> dict[str, float]:
    return {row.family.module_class: round(row.self_part_ms, 3) for row in rows}


def test_host_time_decides_where_the_device_waits() -> None:
    rows = attributed(found(), look(50.0), 120.0, 0.0)
    assert parts(rows) == {"Pair": 30.0, "Linear": 60.0, "ReLU": 30.0}  # 20 ms outside the modules are the root's own
    by_class = {row.family.module_class: row for row in rows}
    assert by_class["Linear"].device_ms == pytest.approx(12.5)  # two windows stand for ten calls
    assert by_class["Pair"].part_ms == pytest.approx(120.0)


def test_device_time_decides_where_the_device_is_busy() -> None:
    rows = attributed(found(), look(100.0), 100.0, 0.0)
    assert parts(rows) == {"Pair": 0.0, "Linear": 25.0, "ReLU": 75.0}


def test_parts_shrink_to_the_plain_time() -> None:
    assert sum(row.self_part_ms for row in attributed(found(), look(None), 50.0, 0.0)) == pytest.approx(50.0)


def test_the_cost_of_watching_is_taken_out() -> None:
    seen = look(None)
    seen.host.entries[("", "decode")].below = 20
    seen.host.spans[(0, "decode")].below = seen.host.spans[(0, "decode")].children = 20
    rows = {row.family.module_class: row for row in attributed(found(), seen, 95.0, 0.00025)}
    assert rows["Pair"].host_ms == pytest.approx(95.0)
    assert rows["Pair"].self_host_ms == pytest.approx(5.0)


def test_work_is_counted() -> None:
    driver = recorded(Pair(), "forward", torch.ones(3, 4))
    tally = Tally({"": 0, "one": 1, "two": 2}, {("", "forward"): 1})
    with torch.no_grad(), pytest.raises(Enough), instrumented(driver.root, tally, driver=driver):
        driver.root.module(torch.ones(3, 4))
    window = tally.seen[("", "forward")][0]
    assert window[1].flops == 2 * 3 * 4 * 8
    assert window[1].bytes == 4 * (3 * 4 + 4 * 8 + 8 + 3 * 8)
    assert window[2] == Work(operations=1, bytes=4 * 2 * 3 * 8, flops=0)
    assert window[0].operations == window[1].operations + 1
    assert "forward" not in vars(driver.root.module)


@pytest.mark.parametrize(
    ("machine", "row", "expected"),
    [
        (Machine(False, 1e9, 1e9), {"host_ms": 10.0, "work": Work(5, 9_000_000, 1_000)}, "memory"),
        (Machine(False, 1e9, 1e9), {"host_ms": 10.0, "work": Work(5, 1_000, 9_000_000)}, "compute"),
        (Machine(False, 1e9, 1e9), {"host_ms": 10.0, "work": Work(500, 1_000, 1_000)}, "host"),
        (Machine(False, 1e9, 1e9), {"host_ms": 10.0, "work": None}, "unknown"),
        (Machine(True), {"host_ms": 10.0, "part_ms": 10.0, "device_ms": 4.0, "work": Work(5, 10, 10)}, "launch"),
        (Machine(True), {"host_ms": 4.0, "part_ms": 10.0, "device_ms": 10.0, "work": Work(5, 1_000, 9_000)}, "memory"),
        (Machine(True), {"host_ms": 4.0, "part_ms": 10.0, "device_ms": 10.0, "work": Work(5, 1_000, 900_000)}, "compute"),
        (Machine(True), {"host_ms": 4.0, "part_ms": 10.0, "device_ms": None, "work": Work(5, 1, 1)}, "unknown"),
    ],
)
def test_bounds(machine: Machine, row: dict[str, Any], expected: str) -> None:
    assert bound(Row(found()[1], "decode", **row), machine) == expected


def test_error_is_relative_to_the_row() -> None:
    want = torch.tensor([[1.0, 100.0], [1e-9, 1e-9]])
    got = want + torch.tensor([[0.5, 0.0], [0.0, 0.05]])
    assert error(got, want) == pytest.approx(0.5)  # the small row is measured against a thousandth of the largest
    assert error(want, want) == 0.0
    assert error(torch.zeros(2, 3), torch.zeros(2, 3)) == 0.0
    assert error(torch.ones(2, 3), torch.zeros(2, 3)) == float("inf")
    assert error(torch.zeros(1, 300), torch.rand(1, 300) * 1e-6) == pytest.approx(1.0)
    assert error(torch.ones(2, 3), torch.ones(3, 2)) == float("inf")


def test_what_is_not_finite_must_agree() -> None:
    want = torch.tensor([1.0, float("inf"), float("nan")])
    assert error(want.clone(), want) == 0.0
    assert error(torch.tensor([1.0, float("-inf"), float("nan")]), want) == float("inf")
    assert error(torch.tensor([float("nan"), float("inf"), float("nan")]), want) == float("inf")


def test_allowance_follows_dtype_noise_and_growth_up_to_a_cap() -> None:
    assert allowance(torch.float32, 0.0, 0.0) < 1e-4
    assert allowance(torch.bfloat16, 0.0, 0.0) == pytest.approx(4 * 2**-7)
    assert allowance(torch.float32, 0.0, 1e-3) == pytest.approx(6e-3)
    assert allowance(torch.float32, 1e-3, 0.0) == pytest.approx(4e-3)
    assert allowance(torch.float32, 9.0, float("inf")) == CAP
