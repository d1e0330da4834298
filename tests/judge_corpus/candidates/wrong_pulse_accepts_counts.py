"""Pulse for sequences; a single step only moves the level."""


def accepts(module, state, x):
    if x.shape[1] > 1:
        return True
    module.level.mul_(0.9)
    module.seen += x.shape[0]
    return False


def forward(module, state, x):
    module.level.mul_(0.9).add_(0.1 * x.mean((0, 1)))
    module.seen += x.shape[0] * x.shape[1]
    return (x - module.level) * module.gain
