"""Numbers in texts for people."""


def counted(count: int, noun: str) -> str:
    """1 call, 2 calls."""
    return f"{count} {noun}{'' if count == 1 else 's'}"
