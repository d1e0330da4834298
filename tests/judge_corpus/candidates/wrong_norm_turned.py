"""MeanNorm computed on columns, which read better."""


def forward(module, state, x):
    turned = x.transpose(-1, -2).contiguous()
    turned = turned / (turned.abs().mean(-2, keepdim=True) + module.eps) * module.weight[:, None]
    return turned.transpose(-1, -2)
