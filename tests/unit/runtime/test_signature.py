import copy
from typing import Any

import torch
from runtime_models import Attention, Scale, Stack
from torch import nn

from llm4llm.runtime.signature import configuration_hash, family_signature, family_signatures, layer_index, root_fingerprint


class Config:
    def __init__(self, **content: Any) -> None:
        self.content = content

    def to_dict(self) -> dict[str, Any]:
        return dict(self.content)


class Configured(nn.Module):
    def __init__(self, **content: Any) -> None:
        super().__init__()
        self.config = Config(**content)


def test_layers_of_a_stack_are_one_family() -> None:
    found = family_signatures(Stack(3))
    assert found["layers.0"] == found["layers.1"] == found["layers.2"]
    assert found["layers.0"] != found["norm"]


def test_a_window_is_no_number_of_an_instance() -> None:
    assert family_signature(Attention(0, window=4)) == family_signature(Attention(1, window=4))
    assert family_signature(Attention(0, window=4)) != family_signature(Attention(0, window=8))


def test_weights_do_not_matter_but_shapes_and_dtypes_do() -> None:
    one, other = Scale(), Scale()
    with torch.no_grad():
        other.weight.mul_(3)
    assert family_signature(one) == family_signature(other)
    assert family_signature(one) != family_signature(Scale(9))
    assert family_signature(one) != family_signature(Scale().to(torch.bfloat16))


def test_flags_soft_caps_and_activations_matter() -> None:
    base = Scale()
    prints = {family_signature(base)}
    for name, value in {"causal": True, "soft_cap": 30.0, "activation": torch.relu, "kind": "sliding", "padding_idx": 1}.items():
        changed = copy.deepcopy(base)
        setattr(changed, name, value)
        prints.add(family_signature(changed))
    assert len(prints) == 6


def test_configuration_content_counts_and_its_origin_does_not() -> None:
    one = Configured(hidden_size=8, _name_or_path="a", transformers_version="5.1")
    same = Configured(hidden_size=8, _name_or_path="b", transformers_version="5.2")
    assert root_fingerprint(one) == root_fingerprint(same)
    assert configuration_hash(one) == configuration_hash(same) != configuration_hash(Configured(hidden_size=9))
    assert root_fingerprint(one) != root_fingerprint(Configured(hidden_size=9))
    assert configuration_hash(Scale()) is None


def test_a_run_leaves_the_fingerprint_as_it_was() -> None:
    model = Stack()
    before = root_fingerprint(model)
    with torch.no_grad():
        model(torch.zeros(1, 2, 8))
    model.layers[0].register_forward_hook(lambda *_: None)
    assert root_fingerprint(model.eval()) == before


def test_modules_that_hold_themselves_have_a_signature() -> None:
    module = Scale()
    module.add_module("again", module)
    assert len(family_signature(module)) == 64


def test_layer_index_is_found_below_a_module_without_one() -> None:
    block = nn.Sequential(Scale(), Attention(5))
    assert layer_index(Attention(3)) == 3
    assert layer_index(block) == 5
    assert layer_index(Stack(2)) is None
