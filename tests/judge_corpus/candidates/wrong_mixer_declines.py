"""Mixer for widths that this model does not have."""


def accepts(module, state, x):
    return x.shape[-1] > 4096


def forward(module, state, x):
    return x
