"""The machine and the packages that a measurement was made on."""

from llm4llm.schema.base import Frozen, Sentence


class Environment(Frozen):
    """Facts that a measurement depends on; its fingerprint is stored with every comparison."""

    python: Sentence
    platform: Sentence
    cpu: Sentence
    cpu_threads: int  # threads that torch uses for one operation
    torch: Sentence
    triton: Sentence | None = None
    transformers: Sentence | None = None
    cuda: Sentence | None = None
    gpu: Sentence | None = None
    gpu_capability: Sentence | None = None  # "9.0"
    gpu_memory_bytes: int | None = None
    driver: Sentence | None = None
    target: Sentence  # name of a target profile
