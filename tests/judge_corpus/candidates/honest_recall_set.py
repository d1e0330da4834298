"""Recall with one packed projection and the cache set directly."""

import torch
from torch.nn import functional


def prepare(module):
    parts = (module.query, module.key, module.value)
    return torch.cat([part.weight for part in parts]).detach(), torch.cat([part.bias for part in parts]).detach()


def forward(module, state, x, cache):
    query, key, value = functional.linear(x, *state).unflatten(-1, (3, module.heads, -1)).unbind(2)
    for name, new in (("keys", key), ("values", value)):
        setattr(cache, name, torch.cat([getattr(cache, name), new], 1))
    cache.calls += 1
    past = cache.keys.shape[1] - x.shape[1]
    scores = torch.matmul(query.transpose(1, 2), cache.keys.permute(0, 2, 3, 1)).div_(query.shape[-1] ** 0.5)
    scores += torch.full(scores.shape[-2:], float("-inf"), dtype=scores.dtype, device=x.device).triu_(past + 1)
    return torch.matmul(scores.softmax(-1), cache.values.transpose(1, 2)).transpose(1, 2).flatten(2).contiguous()
