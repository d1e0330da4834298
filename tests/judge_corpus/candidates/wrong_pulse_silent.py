"""Pulse without writing to a buffer."""


def forward(module, state, x):
    level = module.level * 0.9 + 0.1 * x.mean((0, 1))
    module.seen += x.shape[0] * x.shape[1]
    return (x - level) * module.gain
