"""Pool with two equal choices."""

from torch.nn import functional

CONFIGS = [{"parts": 1}, {"parts": 2}, {"parts": 1}]


def prepare(module, parts):
    return parts


def forward(module, state, query, keys, values, mask=None):
    parts = [part.transpose(1, 2) for part in (query, keys, values)]
    out = functional.scaled_dot_product_attention(*parts, attn_mask=mask, scale=module.scale)
    return out.contiguous().transpose(1, 2)
