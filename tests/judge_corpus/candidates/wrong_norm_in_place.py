"""MeanNorm that saves an allocation."""


def forward(module, state, x):
    x.div_(x.abs().mean(-1, keepdim=True).add_(module.eps))
    return x * module.weight
