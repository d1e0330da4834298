"""Small things about words for people."""


def counted(count: int, noun: str, plural: str = "") -> str:
    """A number with its noun: 1 hotspot, 2 hotspots."""
    return f"{count} {noun if count == 1 else plural or f'{noun}s'}"


def printable(text: str) -> str:
    """The text with everything that could steer a terminal or begin a line written as an escape."""
    return text if text.isprintable() else "".join(letter if letter.isprintable() else _escaped(letter) for letter in text)


def _escaped(letter: str) -> str:
    return letter.encode("unicode_escape").decode()
