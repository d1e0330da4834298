"""The machine and the packages that a measurement was made on."""

from llm4llm.schema.base import Frozen


class Environment(Frozen):
    """Facts that a measurement depends on; its fingerprint is stored with every comparison."""

    python: str
    platform: str
    cpu: str
    cpu_threads: int  # threads that torch uses for one operation
    torch: str
    triton: str | None = None
    transformers: str | None = None
    cuda: str | None = None
    gpu: str | None = None
    gpu_capability: str | None = None  # "9.0"
    gpu_memory_bytes: int | None = None
    driver: str | None = None
    target: str  # name of a target profile
