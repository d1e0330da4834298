"""Lookup from a table packed into a multiple of sixteen rows."""


def prepare(module):
    rows = module.table.shape[0] // 16 * 16
    packed = (module.table[:rows] * module.scale).detach().clone()
    packed[0] = 0
    return packed


def forward(module, state, ids):
    return state[ids.clamp(max=state.shape[0] - 1)]
