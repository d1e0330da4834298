"""Starts children with limits and ends them; knows no kernels."""

from llm4llm.sandbox.answer import Failed, Ok, OnEvent
from llm4llm.sandbox.child import Child
from llm4llm.sandbox.environment import may_be_given, names_a_secret, own_caches, scrubbed, with_given, without_secrets
from llm4llm.sandbox.spec import ChildSpec, Files, Limits
from llm4llm.sandbox.start import Sandbox

__all__ = [
    "Child",
    "ChildSpec",
    "Failed",
    "Files",
    "Limits",
    "Ok",
    "OnEvent",
    "Sandbox",
    "may_be_given",
    "names_a_secret",
    "own_caches",
    "scrubbed",
    "with_given",
    "without_secrets",
]
