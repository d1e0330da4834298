"""MeanNorm by the magnitude of the mean."""


def forward(module, state, x):
    wide = x.float()
    return (wide / (wide.mean(-1, keepdim=True).abs() + module.eps) * module.weight.float()).to(x.dtype)
