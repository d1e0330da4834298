"""Vote written out block by block."""

import torch


def forward(module, state, x):
    scores = module.score(x).float()
    out = torch.empty(scores.shape, dtype=x.dtype, device=x.device)
    shift = scores.logsumexp(-1, keepdim=True)
    for block in range(scores.shape[-1] // 256):
        part = slice(256 * block, 256 * block + 256)
        out[..., part] = torch.exp(scores[..., part] - shift)
    return out
