"""MeanNorm with a forward as short as can be."""


def forward(x):
    return x / (x.abs().mean(-1, keepdim=True) + 1e-5)
