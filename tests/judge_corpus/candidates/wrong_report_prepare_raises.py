"""Report with weight and bias folded."""


def prepare(module):
    return module.weight + module.bias


def forward(module, state, x):
    mean = (x * state).mean(-1, keepdim=True)
    return {"centred": x - mean, "mean": mean.expand_as(x), "spread": x.std(-1), "steps": x.shape[1]}
