"""Mixer with its work bound in advance."""


def prepare(module):
    return module.forward


def forward(module, state, x):
    return state(x)
