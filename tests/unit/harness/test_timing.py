import gc
import random
from typing import Any

import pytest

from llm4llm.harness import timing


class Clock:
    """Each call of a side takes what its script says."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(timing, "_CLOCK_NS", made)
    return made


def sides(clock: Clock, order: list[str]) -> tuple[timing.Side, timing.Side]:
    def side(name: str, cost_ns: int) -> timing.Side:
        def ready(position: int, factor: float) -> tuple[Any, Any]:
            clock.now += 50_000_000  # copying is not timed
            return (position, factor), {}

        def run(given: tuple[Any, Any]) -> str:
            order.append(name)
            clock.now += cost_ns * (1 + given[0][0])
            return name

        return timing.Side(ready, run)

    return side("baseline", 3_000_000), side("patched", 2_000_000)


def test_pairs_run_in_abba_order_on_fresh_inputs(clock: Clock) -> None:
    order: list[str] = []
    kept: list[Any] = []
    baseline, patched = timing.paired(sides(clock, order), 2, 4, 9, False, lambda *place: kept.append(place))
    assert baseline == [[3.0, 6.0]] * 4
    assert patched == [[2.0, 4.0]] * 4
    firsts = order[::2]
    assert firsts == ["baseline"] * 2 + ["patched"] * 4 + ["baseline"] * 2
    factors = {held[1][0][1] for _, _, held in kept}
    assert len(factors) == 8
    assert factors == {timing.factor_of(9, turn, position) for turn in range(4) for position in range(2)}
    assert all(held[0] == "patched" for _, _, held in kept)


def test_collection_is_back_on_after_an_error(clock: Clock) -> None:
    def fails(given: Any) -> Any:
        raise RuntimeError("no")

    broken = timing.Side(lambda position, factor: ((), {}), fails)
    with pytest.raises(RuntimeError):
        timing.paired((broken, broken), 1, 1, 0, False, lambda *place: None)
    assert gc.isenabled()


def test_ratio_and_interval() -> None:
    baseline = [10.0 + 0.01 * (turn % 7) for turn in range(60)]
    patched = [5.0 + 0.01 * (turn % 5) for turn in range(60)]
    middle, interval = timing.ratio_interval(baseline, patched)
    assert middle == pytest.approx(2.0, rel=0.01)
    assert interval is not None
    assert interval[0] <= middle <= interval[1]
    assert interval[1] - interval[0] < 0.02


def test_equal_sides_are_rarely_faster() -> None:
    """Of 200 comparisons of a thing with itself, about 2.5% may seem faster by their interval, and none by more than 2%."""
    source = random.Random(4)
    lows = []
    for run in range(200):
        sides = [[1.0 + 0.05 * source.random() + 0.3 * (source.random() > 0.95) for _ in range(60)] for _ in range(2)]
        _, interval = timing.ratio_interval(sides[0], sides[1], run, 200)
        assert interval is not None
        lows.append(interval[0])
    assert sum(low > 1.0 for low in lows) <= 14
    assert max(lows) < 1.02


def test_few_pairs_have_no_interval() -> None:
    assert timing.ratio_interval([2.0, 2.0], [1.0, 1.0]) == (2.0, None)


def test_calls_count_as_often_as_the_workload_makes_them() -> None:
    assert timing.weighted([[1.0, 10.0], [2.0, 20.0]], [5.0, 1.0]) == [15.0, 30.0]
