"""Why something ended the way it did, for machines and for people."""

from llm4llm.schema.base import Frozen, Name, Sentence


class Reason(Frozen):
    """A code that programs may branch on and one sentence that says what happened and what to do."""

    code: Name
    text: Sentence
