from typing import Any

import pytest
import torch

from llm4llm.harness import inputs, shapes
from llm4llm.harness.calls import Call, laid_out


def noise(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def records(calls: list[tuple[tuple[Any, ...], dict[str, Any]]]) -> list[Call]:
    return inputs.captured([{"args": args, "kwargs": kwargs, "kept": {}, "rng": None, "phase": "decode"} for args, kwargs in calls])


@pytest.mark.parametrize(
    ("tensor", "free"),
    [
        (noise(4, 16), True),
        (noise(4, 16).bfloat16(), True),
        (torch.zeros(4, 16), False),
        (torch.zeros(4, 16).masked_fill(noise(4, 16) > 0, float("-inf")), False),
        (torch.cat([noise(4, 16), torch.full((4, 1), torch.finfo(torch.float32).min)], 1), False),
        (torch.cat([noise(4, 8).cos(), noise(4, 8).cos()], 1), False),
        (torch.arange(16), False),
        (torch.ones(1), False),
    ],
)
def test_activations_are_told_from_masks_and_tables(tensor: torch.Tensor, free: bool) -> None:
    assert inputs.is_activation(tensor) is free


def test_a_mask_in_one_call_is_a_mask_in_all() -> None:
    found = records([((noise(2, 8), noise(2, 8)), {}), ((noise(2, 8), torch.zeros(2, 8)), {})])
    assert [call.scale for call in found] == [(0,), (0,)]


def test_changed_values_keep_everything_else() -> None:
    x = noise(3, 20, 4).transpose(1, 2)
    call = records([((x, torch.arange(5)), {"again": x})])[0]
    other = call.changed(lambda tensor: -tensor, "negated", "values")
    assert torch.equal(other.args[0], -x)
    assert other.args[0].stride() == x.stride()
    assert other.kwargs["again"] is other.args[0]
    assert torch.equal(call.args[0], x)
    assert other.origin == "captured call 0, negated"


def test_every_change_gives_other_values_of_the_same_dtype() -> None:
    call = records([((noise(6, 40).bfloat16(),), {})])[0]
    made = list(inputs.with_other_values([call], torch.Generator().manual_seed(1), 2))
    assert len(made) == len(inputs.changes(torch.Generator()))
    for other in made:
        assert other.args[0].dtype == torch.bfloat16
        assert not torch.equal(other.args[0], call.args[0])
    corners = next(other for other in made if "corners" in other.origin).args[0].flatten()
    assert torch.equal(corners[:8], call.args[0].flatten()[:8])


class Past:
    def __init__(self, keys: torch.Tensor) -> None:
        self.keys = keys
        self.length = keys.shape[1]


def decode_calls() -> list[Call]:
    """x [batch, 1, 8], positions [batch, 1], mask [batch, past + 1], a cache of past tokens."""
    made = []
    for batch, past in [(1, 7), (1, 30), (4, 12), (2, 9)]:
        mask = torch.zeros(batch, past + 1)
        mask[:, 0] = float("-inf")
        made.append(((noise(batch, 1, 8), torch.full((batch, 1), past), mask, Past(noise(batch, past, 8))), {"flag": True}))
    return records(made)


def test_sizes_that_vary_together_are_cut_together() -> None:
    structure = shapes.structures(decode_calls())[0]
    assert [axis.recorded for axis in structure.axes] == [(1, 1, 4, 2), (7, 30, 12, 9)]
    call = shapes.resized(structure, {0: 3, 1: 20})
    x, positions, mask, past = call.args
    assert x.shape == (3, 1, 8)
    assert mask.shape == (3, 21)
    assert past.keys.shape == (3, 20, 8)
    assert past.length == 20
    assert positions.flatten().tolist() == [20, 20, 20]
    assert call.kwargs == {"flag": True}
    assert past is not structure.calls[0].args[3]
    assert [call.args[3].length for call in structure.calls] == [7, 30, 12, 9]


def test_unrecorded_sizes_lie_inside_the_recorded_ranges() -> None:
    structure = shapes.structures(decode_calls())[0]
    found = shapes.unrecorded(structure, torch.Generator().manual_seed(3), 14)
    assert found
    assert all(1 <= sizes[0] <= 4 and 7 <= sizes[1] <= 30 for sizes in found)
    assert {3} <= {sizes[0] for sizes in found}
    assert (4, 12) not in {(sizes[0], sizes[1]) for sizes in found}


def test_other_seeds_draw_other_sizes() -> None:
    structure = shapes.structures(records([((noise(2, length, 8),), {}) for length in (5, 900)]))[0]
    first, second = (shapes.unrecorded(structure, torch.Generator().manual_seed(seed), 20) for seed in (1, 2))
    assert first != second


def test_sums_and_products_follow_their_parts() -> None:
    made = [((noise(old, 4), noise(new, 4), noise(old + new, 4), noise(old * new, 4)), {}) for old, new in [(3, 5), (8, 2), (6, 7)]]
    structure = shapes.structures(records(made))[0]
    assert len(structure.axes) == 2
    call = shapes.resized(structure, {0: 4, 1: 6})
    sizes = [tensor.shape[0] for tensor in call.args]
    assert sizes[2] == sizes[0] + sizes[1]
    assert sizes[3] == sizes[0] * sizes[1]


def test_constant_calls_have_no_axes() -> None:
    structure = shapes.structures(records([((noise(2, 4),), {}), ((noise(2, 4),), {})]))[0]
    assert shapes.unrecorded(structure, torch.Generator(), 10) == []


@pytest.mark.parametrize(
    ("like", "shape", "stride"),
    [
        (torch.empty(2, 3, 4), (5, 3, 4), (12, 4, 1)),
        (torch.empty(2, 4, 3).transpose(1, 2), (2, 5, 4), (20, 1, 5)),
        (torch.empty(1, 4).expand(6, 4), (3, 4), (0, 1)),
        (torch.empty(6, 30)[:, :10], (4, 10), (30, 1)),
    ],
)
def test_layout_is_kept(like: torch.Tensor, shape: tuple[int, ...], stride: tuple[int, ...]) -> None:
    values = torch.arange(float(torch.Size(shape).numel())).reshape(shape)
    if 0 in stride:
        values = values[:1].expand(shape)
    made = laid_out(values, like)
    assert made.stride() == stride
    assert torch.equal(made, values)


def test_positions_move_and_ids_stay() -> None:
    assert inputs.is_position(torch.tensor([[0, 0, 1, 2], [0, 1, 2, 3]]))
    assert inputs.is_position(torch.tensor([[17]]))
    assert not inputs.is_position(torch.tensor([[0, 1, 1, 1]]))
    assert not inputs.is_position(torch.tensor([[7, 3, 99]]))
    call = records([((noise(1, 4, 8), torch.arange(4)[None]), {})])[0]
    moved = list(inputs.with_later_positions([call]))
    assert [other.args[1].flatten().tolist() for other in moved] == [[n, n + 1, n + 2, n + 3] for n in inputs.LATER]


def blocks(width: int) -> torch.Tensor:
    mask = torch.zeros(2, 1, 3, width)
    mask[..., -2:] = -30000.0
    return mask


@pytest.mark.parametrize(
    ("tensor", "found"),
    [
        (torch.ones(2, 8, dtype=torch.bool), True),
        (torch.ones(2, 8, dtype=torch.int64).index_fill(1, torch.tensor([0]), 0), True),
        (blocks(6), True),
        (blocks(6).masked_fill(blocks(6) < 0, float("-inf")), True),
        (torch.zeros(2, 8), False),
        (torch.arange(16).view(2, 8), False),
        (noise(2, 8), False),
        (torch.ones(8, dtype=torch.bool), False),
    ],
)
def test_masks_say_of_every_place_whether_it_counts(tensor: torch.Tensor, found: bool) -> None:
    assert inputs.is_mask(tensor) is found


def test_other_masks_block_as_many_places_elsewhere() -> None:
    (other,) = inputs.with_other_masks(records([((noise(2, 6),), {"mask": blocks(6)})]), torch.Generator().manual_seed(3))
    assert not torch.equal(other.kwargs["mask"], blocks(6))
    assert torch.equal(other.kwargs["mask"].sort(-1).values, blocks(6).sort(-1).values)
    assert torch.equal(other.args[0], noise(2, 6))
    assert not list(inputs.with_other_masks(records([((noise(2, 6), torch.ones(2, 6, dtype=torch.bool)), {})]), torch.Generator()))


def test_other_ids_are_rows_of_a_weight_and_keep_what_is_equal() -> None:
    table, source = torch.nn.Embedding(500, 4), torch.Generator().manual_seed(3)
    ids = torch.tensor([[5, 3, 5, 9, 0], [0, 0, 7, 1, 3]])
    calls = records([((ids,), {}), ((torch.tensor([[4]]),), {})])
    made = [call.args[0] for call in inputs.with_other_ids(calls, table, source)]
    other = next(tensor for tensor in made if tensor.numel() > 1)
    assert 9 < int(other.max()) < 500
    assert torch.equal(other.flatten()[:, None] == other.flatten(), ids.flatten()[:, None] == ids.flatten())
    for integers in (torch.arange(10).view(2, 5), ids * 100, torch.tensor([[0, 1, 0, 1, 1], [1, 0, 0, 1, 0]]), ids.flatten()):
        assert not list(inputs.with_other_ids(records([((integers,), {})]), table, source))


def test_an_empty_tensor_can_be_laid_out_larger() -> None:
    like = torch.empty(2, 0, 4)
    assert laid_out(torch.ones(3, 5, 4), like).shape == (3, 5, 4)
