import inspect

import pytest

from llm4llm import errors
from llm4llm.errors import InfraError, Llm4llmError, ProviderError, ScriptNotPython, StageError, UserError

EVERY = [value for _, value in inspect.getmembers(errors, inspect.isclass) if issubclass(value, Llm4llmError)]


def test_codes_are_unique_and_stable_in_form() -> None:
    codes = [error.code for error in EVERY]
    assert len(set(codes)) == len(codes)
    assert all(code.isidentifier() and code == code.lower() for code in codes)


@pytest.mark.parametrize("error", EVERY, ids=lambda error: error.__name__)
def test_every_error_belongs_to_one_family(error: type[Llm4llmError]) -> None:
    families = [family for family in (UserError, StageError, ProviderError, InfraError) if issubclass(error, family)]
    assert error is Llm4llmError or len(families) == 1


def test_what_the_user_gave_is_never_worth_a_retry() -> None:
    assert not any(error.retryable for error in EVERY if issubclass(error, UserError))
    assert ProviderError.retryable
    assert InfraError.retryable


def test_a_text_says_what_happened_and_what_to_do() -> None:
    error = ScriptNotPython("run.py", 13, "'(' was never closed")
    assert str(error) == "the script is not valid Python (run.py, line 13: '(' was never closed): correct the file; nothing was run"
    assert (error.file, error.line, error.message) == ("run.py", 13, "'(' was never closed")
