import math

import pytest
import torch

from llm4llm.harness.compare import compare, distance, floor_of, share_under
from llm4llm.harness.oracle import Truth
from llm4llm.harness.portrait import Leaf, Tree, leaf, portrait

EPS = torch.finfo(torch.float32).eps
FLOOR = floor_of("float32", "float64")


def truth_of(parts: dict[str, object], exact: dict[str, torch.Tensor], unchanged: set[str]) -> Truth:
    tree, found = portrait({"result": None, "args": (), "kwargs": {}, "kept": {}, **parts})
    listed = [leaf(path, tensor, values=path not in unchanged) for path, tensor in found]
    return Truth(tree, listed, exact, frozenset(unchanged), frozenset(), False, "float64")


def picture(parts: dict[str, object], unchanged: frozenset[str] = frozenset()) -> tuple[Tree, list[Leaf]]:
    tree, found = portrait({"result": None, "args": (), "kwargs": {}, "kept": {}, **parts})
    return tree, [leaf(path, tensor, values=path not in unchanged) for path, tensor in found]


def test_small_rows_are_measured_against_their_own_height() -> None:
    exact = torch.full((4, 8), 3e-6, dtype=torch.float64)
    own = exact.float()
    assert distance(own, own, exact, 0.0, FLOOR).excess <= 1
    assert distance(torch.zeros(4, 8), own, exact, 0.0, FLOOR).excess > 1e4


def test_limit_is_eight_times_the_own_error_of_that_row_alone() -> None:
    exact = torch.ones(2, 4, dtype=torch.float64)
    own = torch.ones(2, 4)
    own[1] += 0.01
    got = own.clone()
    got[1] = 1.07
    assert distance(got, own, exact, 0.0, FLOOR).excess <= 1
    got[0] = 1.07
    far = distance(got, own, exact, 0.0, FLOOR)
    assert far.excess > 1
    assert far.row == 0


def test_tiny_rows_beside_large_ones_are_measured_at_a_hundredth() -> None:
    exact = torch.tensor([[1.0, 1.0], [1e-9, 1e-9]], dtype=torch.float64)
    got = exact.float()
    got[1] += 0.01 * 8 * EPS
    assert distance(got, exact.float(), exact, 0.0, FLOOR).excess <= 1
    got[1] += 1e-3
    assert distance(got, exact.float(), exact, 0.0, FLOOR).excess > 1


def test_usual_error_widens_every_row() -> None:
    exact = torch.ones(3, 4, dtype=torch.float64)
    got = exact.float() * (1 + 1e-4)
    assert distance(got, exact.float(), exact, 0.0, FLOOR).excess > 1
    assert distance(got, exact.float(), exact, 2e-5, FLOOR).excess <= 1


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_stray_nonfinite_values_are_wrong(value: float) -> None:
    exact = torch.ones(2, 4, dtype=torch.float64)
    got = exact.float()
    got[1, 2] = value
    far = distance(got, exact.float(), exact, 0.0, FLOOR)
    assert far.excess == math.inf
    assert (far.row, far.column, far.pattern) == (1, 2, True)


def test_nonfinite_values_of_the_original_are_required() -> None:
    exact = torch.tensor([[1.0, math.inf, -math.inf, math.nan]], dtype=torch.float64)
    own = exact.float()
    assert distance(own, own, exact, 0.0, FLOOR).excess <= 1
    for place, value in ((1, 5.0), (1, -math.inf), (3, 0.0)):
        got = own.clone()
        got[0, place] = value
        assert distance(got, own, exact, 0.0, FLOOR).excess == math.inf


def test_overflow_of_the_original_alone_allows_the_exact_value() -> None:
    exact = torch.tensor([[1.0, 2.0]], dtype=torch.float64)
    own = torch.tensor([[1.0, math.inf]])
    assert distance(torch.tensor([[1.0, 2.0]]), own, exact, 0.0, FLOOR).excess <= 1
    assert distance(own, own, exact, 0.0, FLOOR).excess <= 1
    assert distance(torch.tensor([[1.0, 3.0]]), own, exact, 0.0, FLOOR).excess > 1


def test_floor_grows_without_an_oracle_and_with_less_precision() -> None:
    assert floor_of("float32", "own") > floor_of("float32", "float64")
    assert floor_of("bfloat16", "float64") == 2 * torch.finfo(torch.bfloat16).eps


def test_share_under() -> None:
    assert share_under(torch.arange(100.0), 0.75) == 75.0
    assert share_under(torch.tensor([4.0]), 0.9) == 4.0


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (torch.ones(2, 3, dtype=torch.float64), "dtype"),
        (torch.ones(3, 2), "shape"),
        (torch.ones(3, 2).t(), "stride"),
        (torch.ones(2, 3).as_subclass(type("Lazy", (torch.Tensor,), {})), "type"),
        ([torch.ones(2, 3)], "structure"),
        (None, "structure"),
    ],
)
def test_contract_of_the_result(answer: object, kind: str) -> None:
    truth = truth_of({"result": torch.ones(2, 3)}, {"result": torch.ones(2, 3, dtype=torch.float64)}, set())
    fault, excess = compare(*picture({"result": answer}), truth, {})
    assert fault is not None
    assert fault.kind == kind
    assert excess == math.inf


def test_strides_of_single_rows_mean_nothing() -> None:
    want, got = torch.ones(1, 3), torch.ones(3, 1).t()
    truth = truth_of({"result": want}, {"result": want.double()}, set())
    assert compare(*picture({"result": got}), truth, {})[0] is None


def test_effects() -> None:
    x = torch.ones(2)
    truth = truth_of({"result": None, "args": (x, [x * 2])}, {"args[1][0]": x.double() * 2}, {"args[0]"})
    right = picture({"args": (x, [x * 2])}, frozenset({"args[0]"}))
    assert compare(*right, truth, {}) == (None, 0.0)
    fault, _ = compare(*picture({"args": (x * 3, [x * 2])}), truth, {})
    assert fault is not None
    assert fault.kind == "input_mutated"
    fault, _ = compare(*picture({"args": (x, [x * 2])}, frozenset({"args[0]", "args[1][0]"})), truth, {})
    assert fault is not None
    assert (fault.kind, "unchanged" in fault.reason) == ("effect", True)
    fault, _ = compare(*picture({"args": (x, [x * 2, 7])}, frozenset({"args[0]"})), truth, {})
    assert fault is not None
    assert fault.kind == "effect"


def test_integers_are_exact_or_the_oracle_s() -> None:
    own, exact = torch.tensor([1, 2, 3]), torch.tensor([1, 2, 4])
    truth = truth_of({"result": own}, {"result": exact}, set())
    assert compare(*picture({"result": torch.tensor([1, 2, 3])}), truth, {})[0] is None
    assert compare(*picture({"result": torch.tensor([1, 2, 4])}), truth, {})[0] is None
    fault, _ = compare(*picture({"result": torch.tensor([1, 2, 5])}), truth, {})
    assert fault is not None
    assert fault.kind == "numerical"


def test_reason_says_where_the_error_sits() -> None:
    exact = torch.ones(2, 3, 8, dtype=torch.float64)
    got = torch.ones(2, 3, 8)
    got[1, 2, 6:] = 0
    truth = truth_of({"result": torch.ones(2, 3, 8)}, {"result": exact}, set())
    fault, _ = compare(*picture({"result": got}), truth, {})
    assert fault is not None
    text = "\n".join(fault.details)
    assert "[1, 2, 6] of [2, 3, 8]" in text
    assert "1 of 6 rows" in text
    assert "a tail 6 to 7" in text


def test_short_rows_are_joined_so_that_one_lucky_number_allows_the_others_nothing() -> None:
    exact = torch.linspace(0.1, 1.0, 48, dtype=torch.float64).view(1, 48, 1)
    got, own = exact.float(), exact.float()
    got[0, 0] += 4 * EPS
    assert distance(got, own, exact, 0.0, FLOOR).excess <= 1
    assert distance(got + 1e-3, own, exact, 0.0, FLOOR).rows == 1


def test_a_result_that_wants_gradients_is_a_fault() -> None:
    truth = truth_of({"result": torch.ones(2, 4)}, {}, set())
    fault, _ = compare(*picture({"result": torch.ones(2, 4, requires_grad=True)}), truth, {})
    assert fault is not None
    assert fault.kind == "requires_grad"
    truth = truth_of({"result": torch.ones(2, 4, requires_grad=True)}, {}, set())
    assert compare(*picture({"result": torch.ones(2, 4)}), truth, {})[0] is None
