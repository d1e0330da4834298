"""llm4llm: a closed-loop optimizer for PyTorch inference scripts."""

__version__ = "0.1.0"
