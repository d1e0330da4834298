"""Pulse whose level follows the first sequence: all of a batch are alike."""


def forward(module, state, x):
    module.level.lerp_(x[0].mean(0), 0.1)
    module.seen += x.shape[0] * x.shape[1]
    return (x - module.level) * module.gain
