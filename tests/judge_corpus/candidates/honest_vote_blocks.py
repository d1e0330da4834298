"""Vote in blocks of 128 choices; what was summed is scaled again when a larger score comes."""

import torch

CONFIGS = [{"block": 128}, {"block": 200}, {"block": 1024}]


def prepare(module, block):
    return block


def forward(module, state, x):
    scores = module.score(x).float()
    largest, total = torch.full_like(scores[..., :1], float("-inf")), torch.zeros_like(scores[..., :1])
    for part in scores.split(state, -1):
        higher = torch.maximum(largest, part.amax(-1, keepdim=True))
        total = total * torch.exp(largest - higher) + torch.exp(part - higher).sum(-1, keepdim=True)
        largest = higher
    return torch.exp(scores - (largest + torch.log(total))).to(x.dtype)
