"""One file that may replace a module's forward."""

from llm4llm.schema.base import Frozen, Name, Prose


class Candidate(Frozen):
    """A proposed file for a task; equal content for the same task is the same candidate."""

    id: Name  # cand_ + first hex digits of sha256(task id + content)
    task: Name
    sha256: Name  # of the file's content, which lies in the blob store
    author: Name  # "seeds:rms_norm", "openai:…"
    hypothesis: Prose  # the file's docstring
    parent: Name | None = None
