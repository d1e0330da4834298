"""The few calls that cover all calls of a module."""

import torch
from torch import nn

from llm4llm.harness.regimes import CallFacts, call_facts, chosen


def calls(*rows: tuple[int, ...], regime: str = "a") -> list[CallFacts]:
    return [CallFacts(regime, row) for row in rows]


def axes_of(facts: list[CallFacts]) -> list[tuple[float, ...]]:
    return [facts[index].axes for index in chosen(facts)]


def test_extremes_of_every_axis_are_held_with_few_calls() -> None:
    facts = calls((1, 5), (2, 9), (3, 1), (9, 4), (5, 5))
    picked = axes_of(facts)
    for axis in (0, 1):
        column = [row.axes[axis] for row in facts]
        assert {min(column), max(column)} <= {row[axis] for row in picked}


def test_a_growing_cache_gives_its_first_and_last_length_and_one_between() -> None:
    facts = calls(*((1, 100 + step, 100 + step) for step in range(64)))
    picked = [row[1] for row in axes_of(facts)]
    assert len(picked) == 3
    assert (picked[0], picked[-1]) == (100, 163)
    assert 100 < picked[1] < 163


def test_equal_calls_give_the_first_and_the_last() -> None:
    assert chosen(calls((4,), (4,))) == [0, 1]
    picked = chosen(calls(*[(4,)] * 9))
    assert picked[0] == 0
    assert picked[-1] == 8
    assert chosen(calls((4,))) == [0]
    assert chosen([]) == []


def test_every_regime_gets_two_calls_before_any_gets_more() -> None:
    facts = calls(*((size,) for size in range(20))) + calls((1,), (7,), regime="b") + calls((3,), regime="c")
    picked = [facts[index] for index in chosen(facts)]
    assert [one.axes for one in picked if one.regime == "b"] == [(1,), (7,)]
    assert [one.axes for one in picked if one.regime == "c"] == [(3,)]
    assert {(0,), (19,)} <= {one.axes for one in picked if one.regime == "a"}


def test_no_more_than_the_limit_and_the_frequent_regimes_first() -> None:
    facts = [fact for number in range(9) for fact in calls(*[(1,), (2,)] * (10 - number), regime=f"r{number}")]
    picked = [facts[index].regime for index in chosen(facts)]
    assert len(picked) == 8
    assert set(picked) == {"r0", "r1", "r2", "r3"}


def test_numbers_make_axes_and_everything_else_makes_regimes() -> None:
    layer = nn.Linear(4, 4).eval()

    def facts(*args: object, surroundings: object = None, **kwargs: object) -> CallFacts:
        return call_facts(args, kwargs, layer, surroundings)

    base = facts(torch.ones(2, 4), flag=True, length=3, name="x", mask=None)
    assert facts(torch.zeros(5, 4), flag=True, length=9, name="x", mask=None).regime == base.regime
    assert facts(torch.zeros(5, 4), flag=True, length=9, name="x", mask=None).axes != base.axes
    others = [
        facts(torch.ones(2, 4), flag=False, length=3, name="x", mask=None),
        facts(torch.ones(2, 4), flag=True, length=3, name="y", mask=None),
        facts(torch.ones(2, 4), flag=True, length=3, name="x", mask=torch.ones(1)),
        facts(torch.ones(2, 4).double(), flag=True, length=3, name="x", mask=None),
        facts(torch.ones(1, 2, 4), flag=True, length=3, name="x", mask=None),
        facts(torch.ones(4, 2).t(), flag=True, length=3, name="x", mask=None),
        facts(torch.ones(0, 4), flag=True, length=3, name="x", mask=None),
        facts(torch.ones(2, 4), flag=True, length=3, name="x"),
        facts(torch.ones(2, 4), flag=True, length=3, name="x", mask=None, surroundings={"grad": True}),
    ]
    layer.train()
    others.append(facts(torch.ones(2, 4), flag=True, length=3, name="x", mask=None))
    assert len({base.regime, *(one.regime for one in others)}) == len(others) + 1


def test_what_the_module_keeps_counts_too() -> None:
    layer = nn.Linear(4, 4)
    layer.filled = 0  # type: ignore[assignment]
    before = call_facts((), {}, layer, None)
    layer.filled = 7  # type: ignore[assignment]
    after = call_facts((), {}, layer, None)
    assert before.regime == after.regime
    assert before.axes != after.axes
    layer.filled = None  # type: ignore[assignment]
    assert call_facts((), {}, layer, None).regime != before.regime
