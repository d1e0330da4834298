"""Vote that measures two ways and keeps the faster."""

import torch


def prepare(module):
    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    first.record()
    module.score(torch.zeros(1, 48))
    last.record()
    return first.elapsed_time(last) < 1.0


def forward(module, state, x):
    return torch.softmax(module.score(x).float(), -1).to(x.dtype)
