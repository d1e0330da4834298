"""The LLM protocol and its providers."""
