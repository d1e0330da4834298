"""Why a patch can't be put on a model."""


class Refused(Exception):
    """The model, the machine or the bundle does not fit; nothing was changed. `code` is for programs, the text names what differs."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


class PatchFailed(RuntimeError):
    """A patched forward raised after it may already have changed its inputs, so that running the original would change them twice."""
