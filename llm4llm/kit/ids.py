"""Ids that name their kind and sort by the time at which they were made."""

import random

from llm4llm.kit.clock import Clock

# Crockford's base 32: no i, l, o, u, so that an id survives being read aloud
_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_TIME_DIGITS = 9  # 45 bits of milliseconds: until the year 3084
_RANDOM_DIGITS = 8  # 40 bits


def new_id(prefix: str, clock: Clock, rng: random.Random) -> str:
    """prefix_<9 digits of milliseconds><8 random digits>; ids of later milliseconds sort later."""
    milliseconds = int(clock.now().timestamp() * 1000)
    return f"{prefix}_{_digits(milliseconds, _TIME_DIGITS)}{_digits(rng.getrandbits(5 * _RANDOM_DIGITS), _RANDOM_DIGITS)}"


def _digits(number: int, width: int) -> str:
    text = ""
    for _ in range(width):
        number, digit = divmod(number, len(_ALPHABET))
        text = _ALPHABET[digit] + text
    return text
