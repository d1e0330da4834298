"""Trail in tiles of eight steps, the last one shorter."""

import torch


def forward(module, state, x):
    length = x.shape[1]
    padded = torch.cat([x.new_zeros(x.shape[0], module.taps - 1, x.shape[2]), x], 1)
    total = module.bias.expand(x.shape).clone()
    for start in range(0, length, 8):
        stop = min(start + 8, length - length % 8 + (length % 8 or -1))
        for tap in range(module.taps):
            total[:, start:stop] += padded[:, start + tap : stop + tap] * module.weight[:, tap]
    return total * torch.sigmoid(total)
