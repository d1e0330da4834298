"""Recall by the library's attention, with a triangle below the past as its mask."""

import torch
from torch.nn import functional


def _attended(module, x, query, keys, values):
    past = keys.shape[1] - x.shape[1]
    mask = torch.ones(x.shape[1], keys.shape[1], dtype=torch.bool, device=x.device).tril(past)
    parts = [part.transpose(1, 2) for part in (query, keys, values)]
    return functional.scaled_dot_product_attention(*parts, attn_mask=mask).transpose(1, 2).flatten(2).contiguous()


def forward(module, state, x, cache):
    query, key, value = (part(x).unflatten(-1, (module.heads, -1)) for part in (module.query, module.key, module.value))
    return _attended(module, x, query, *cache.append(key, value))
