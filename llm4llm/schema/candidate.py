"""One file that may replace a module's forward."""

from llm4llm.schema.base import Frozen


class Candidate(Frozen):
    """A proposed file for a task; equal content for the same task is the same candidate."""

    id: str  # cand_ + first hex digits of sha256(task id + content)
    task: str
    sha256: str  # of the file's content, which lies in the blob store
    author: str  # "seeds:rms_norm", "openai:…"
    hypothesis: str  # the file's docstring
    parent: str | None = None
