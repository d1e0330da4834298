"""Recall by halving the cache until one token is left."""


def _halved(keys):
    return _halved(keys[:, : max(1, keys.shape[1] // 2)])


def forward(module, state, x, cache):
    return _halved(cache.keys).flatten(2)
