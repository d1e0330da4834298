"""Mixer with a lean copy of the module."""


def prepare(module):
    twin = type(module)(module.gate.in_features, module.gate.out_features).to(module.gate.weight.dtype)
    twin.load_state_dict(module.state_dict())
    return twin.eval()


def forward(module, state, x):
    return state(x)
