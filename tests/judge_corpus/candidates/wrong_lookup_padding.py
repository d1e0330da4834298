"""Lookup by the library's embedding, whose row 0 is padding."""

from torch.nn import functional


def prepare(module):
    return (module.table * module.scale).detach()


def forward(module, state, ids):
    return functional.embedding(ids, state, padding_idx=0)
