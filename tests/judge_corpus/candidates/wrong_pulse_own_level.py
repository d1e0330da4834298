"""Pulse with its level beside its weights."""


def prepare(module):
    return module.level.clone()


def forward(module, state, x):
    state.mul_(0.9).add_(0.1 * x.mean((0, 1)))
    module.seen += x.shape[0] * x.shape[1]
    return (x - state) * module.gain
