"""Decay whose single step hands out the state itself."""

import torch


def forward(module, state, x, memory):
    keep = torch.sigmoid(module.rate)
    out = []
    for step in range(x.shape[1]):
        memory.state.mul_(keep).add_((1.0 - keep) * x[:, step])
        out.append(memory.state if x.shape[1] == 1 else memory.state.clone())
    memory.steps += x.shape[1]
    return out[0].unsqueeze(1) if x.shape[1] == 1 else torch.stack(out, 1)
