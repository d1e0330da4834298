"""The base of every stored type, and the bounds of what a child may put into one: frozen, closed, strict about unknown fields."""

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

_MOST_FACTS = 1 << 20  # characters of all texts, and 16 for every other value
_DEEPEST = 64


class Frozen(BaseModel):
    """An immutable value; unknown fields are refused so that a typo never passes as data."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="null")


def _cut(most: int) -> Callable[[str], str]:
    return lambda text: text if len(text) <= most else f"{text[: most - 1]}…"


def _small(facts: dict[str, Any]) -> dict[str, Any]:
    size = 0
    stack: list[tuple[int, Any]] = [(0, facts)]
    while stack:
        depth, value = stack.pop()
        size += len(value) if isinstance(value, str) else 16
        if size > _MOST_FACTS or depth > _DEEPEST:
            raise ValueError("there are more facts than anybody needs")
        if isinstance(value, dict):
            stack += [(depth + 1, part) for item in value.items() for part in item]
        elif isinstance(value, list | tuple):
            stack += [(depth + 1, part) for part in value]
    return facts


# Whatever the live host, the judge or a candidate may have said is bounded by its type: names are refused when they are too long, texts
# for people are cut, because an honest exception may say any amount.
Name = Annotated[str, Field(max_length=1_000)]
Names = Annotated[tuple[Name, ...], Field(max_length=1_000)]
Paths = Annotated[tuple[Name, ...], Field(max_length=200_000)]  # of the instances of one module
Sentence = Annotated[str, AfterValidator(_cut(4_000))]
Prose = Annotated[str, AfterValidator(_cut(20_000))]
Number = Annotated[float, Field(allow_inf_nan=False)]  # where null could not be read back
Samples = Annotated[tuple[Number, ...], Field(max_length=1_000)]
Facts = Annotated[dict[str, Any], AfterValidator(_small)]
