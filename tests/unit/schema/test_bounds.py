"""Every list and text that a child fills has an end, in whichever type it stands."""

from collections.abc import Iterator
from typing import Any

import annotated_types
import pytest
from pydantic import AfterValidator, BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from llm4llm.schema.acceptance import Patch, Site, Trialled
from llm4llm.schema.base import Facts
from llm4llm.schema.candidate import Candidate
from llm4llm.schema.capture import Capture
from llm4llm.schema.event import Event
from llm4llm.schema.profile import ProfileReport
from llm4llm.schema.reason import Reason
from llm4llm.schema.task import Task
from llm4llm.schema.verdict import Failed, Incorrect, Passed, Rejected

FED_BY_CHILDREN = (Candidate, Capture, Event, Failed, Incorrect, Passed, Patch, ProfileReport, Reason, Rejected, Site, Task, Trialled)


def unbounded(kind: Any, where: str, metadata: tuple[Any, ...] = ()) -> Iterator[str]:
    """Places below a type whose length nothing limits."""
    if hasattr(kind, "__metadata__"):
        yield from unbounded(kind.__origin__, where, (*metadata, *kind.__metadata__))
        return
    details = [part for item in metadata for part in (item.metadata if isinstance(item, FieldInfo) else (item,))]
    bounded = any(isinstance(part, annotated_types.MaxLen | AfterValidator) for part in details)
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        for name, field in kind.model_fields.items():
            yield from unbounded(field.annotation, f"{where}.{name}", tuple(field.metadata))
        return
    origin, parts = getattr(kind, "__origin__", kind), getattr(kind, "__args__", ())
    fixed = origin is tuple and parts and parts[-1] is not Ellipsis
    if (kind is str or origin in (tuple, list, dict)) and not (bounded or fixed):
        yield where
    if not any(isinstance(part, AfterValidator) for part in details):
        for part in parts:
            if part is not Ellipsis and not isinstance(part, str):
                yield from unbounded(part, where, metadata if kind is not str and origin not in (tuple, list, dict) else ())


@pytest.mark.parametrize("model", FED_BY_CHILDREN, ids=lambda model: model.__name__)
def test_nothing_that_a_child_fills_is_without_end(model: type[BaseModel]) -> None:
    assert list(unbounded(model, model.__name__)) == []


def test_the_search_finds_what_has_no_end() -> None:
    class Loose(BaseModel):
        text: str
        maybe: str | None = None
        many: tuple[str, ...] = ()
        facts: dict[str, Any] = {}

    assert set(unbounded(Loose, "L")) == {"L.text", "L.maybe", "L.many", "L.facts"}


def test_texts_for_people_are_cut_and_names_refused() -> None:
    assert len(Reason(code="c", text="x" * 100_000).text) == 4_000
    with pytest.raises(ValidationError):
        Reason(code="c" * 100_000, text="x")


@pytest.mark.parametrize("many", [[{}] * 100_000, ["x" * 100] * 20_000])
def test_facts_have_a_size(many: list[Any]) -> None:
    adapter: TypeAdapter[dict[str, Any]] = TypeAdapter(Facts)
    with pytest.raises(ValidationError):
        adapter.validate_python({"a": many})
    deep: dict[str, Any] = {}
    for _ in range(100):
        deep = {"": deep}
    with pytest.raises(ValidationError):
        adapter.validate_python(deep)
    assert adapter.validate_python({"a": [1, {"b": "c"}]}) == {"a": [1, {"b": "c"}]}
