"""Join that needs no memory of its own."""


def forward(module, state, x, branch):
    x += branch.tanh_().mul_(module.gain.sigmoid()).add_(module.shift)
    return x
