"""Bands with sums over steps first, while channels still lie side by side in memory."""

import torch


def forward(module, state, x):
    wide = x.float()
    shape = (x.shape[0], module.groups, x.shape[1] // module.groups)

    def spread(parts):
        return parts.mean(-1, keepdim=True).expand(shape).reshape(x.shape[0], x.shape[1], 1)

    centred = wide - spread(wide.mean(-1).view(shape))
    scale = torch.rsqrt(spread(centred.square().mean(-1).view(shape)) + module.eps)
    y = centred * (scale * module.weight.float()[:, None]) + module.bias.float()[:, None]
    return y.to(x.dtype).contiguous()
