"""MeanNorm that hands out its rows one by one."""


def forward(module, state, x):
    for row in x:
        yield row / (row.abs().mean(-1, keepdim=True) + module.eps) * module.weight
