import torch
from recorded import recorded, rooted, workload_of
from torch import nn

from llm4llm.harness.families import all_families, families, locate


class Block(nn.Module):
    def __init__(self, index: int, window: int | None = None, kind: str = "full", softcap: float | None = None) -> None:
        super().__init__()
        self.layer_idx, self.window, self.attention_type, self.softcap = index, window, kind, softcap
        self.proj = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.proj(x)


class Stack(nn.Module):
    def __init__(self, blocks: list[Block]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def grouped(model: nn.Module) -> list[tuple[str, ...]]:
    return [family.paths for family in families(rooted(model)) if family.module_class == "Block"]


def test_a_number_among_siblings_does_not_split() -> None:
    assert grouped(Stack([Block(0), Block(1), Block(2)])) == [("blocks.0", "blocks.1", "blocks.2")]


def test_window_kind_and_softcap_split() -> None:
    model = Stack([Block(0), Block(1, window=8), Block(2, kind="sliding"), Block(3, softcap=30.0), Block(4)])
    assert grouped(model) == [("blocks.0", "blocks.4"), ("blocks.1",), ("blocks.2",), ("blocks.3",)]


def test_shapes_and_dtypes_split() -> None:
    model = Stack([Block(0), Block(1).to(torch.bfloat16), Block(2)])
    model.blocks[2].proj = nn.Linear(4, 4, bias=False)
    assert len(grouped(model)) == 3


def test_devices_split_but_share_the_signature() -> None:
    model = Stack([Block(0), Block(1).to("meta")])
    found = [family for family in families(rooted(model)) if family.module_class == "Block"]
    assert len(found) == 2
    assert found[0].signature == found[1].signature
    assert found[0].hotspot_id("forward") != found[1].hotspot_id("forward")


def test_ids_are_equal_for_an_equal_model_and_differ_by_phase() -> None:
    one, two = (families(rooted(Stack([Block(0), Block(1)]))) for _ in range(2))
    assert [family.hotspot_id("decode") for family in one] == [family.hotspot_id("decode") for family in two]
    assert one[0].hotspot_id("decode") != one[0].hotspot_id("prefill")
    assert one[0].hotspot_id("decode").startswith("h_")
    assert len(one[0].hotspot_id("decode")) == 14


def test_twin_roots_have_ids_of_their_own_and_are_found_again() -> None:
    x = torch.ones(1, 4)
    workload = workload_of(*(recorded(Stack([Block(0)]), "forward", x) for _ in range(2)))
    found = all_families(workload)
    names = [family.hotspot_id("forward") for root in ("r0", "r1") for family in found[root]]
    assert len(set(names)) == len(names)
    places = locate(workload, [names[-1], "h_unknown"])
    assert list(places) == [names[-1]]
    assert places[names[-1]].family.root is workload.roots[1]
    assert places[names[-1]].phase == "forward"
