"""Lookup from a table that is scaled in advance and has zeros for padding."""

from torch.nn import functional


def prepare(module):
    packed = module.table.detach() * module.scale
    packed[0] = 0
    return packed


def forward(module, state, ids):
    return functional.embedding(ids, state)
