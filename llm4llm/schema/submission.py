"""What comes with a script when it is handed in over the network."""

import math
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from llm4llm.errors import BadArguments
from llm4llm.kit import parse_duration
from llm4llm.schema.base import Frozen

MAX_ARGUMENTS_BYTES = 512 << 10  # below what Linux takes for one command line
LONGEST_BUDGET_S = 30 * 86400.0


def _seconds(value: Any) -> Any:
    """Seconds of "10m"; numbers pass as they are."""
    if isinstance(value, str):
        try:
            return parse_duration(value[:64])
        except BadArguments as error:
            raise ValueError(str(error)) from error
    if isinstance(value, bool):
        raise ValueError("give a number of seconds, or a text like 10m")  # noqa: TRY004 (pydantic wants it)
    return value


def _no_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("no text may hold a NUL")
    return text


def _fits(arguments: tuple[str, ...]) -> tuple[str, ...]:
    if sum(len(one.encode("utf-8", "surrogatepass")) + 1 for one in arguments) > MAX_ARGUMENTS_BYTES:
        raise ValueError(f"all arguments together may have {MAX_ARGUMENTS_BYTES} bytes")
    return arguments


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise ValueError("give a finite number")
    return value


Text = Annotated[str, Field(max_length=100_000), AfterValidator(_no_nul)]
Name = Annotated[str, Field(min_length=1, max_length=64), AfterValidator(_no_nul)]


class Options(Frozen):
    """How the script is run and optimized."""

    args: Annotated[tuple[Text, ...], Field(max_length=1000), AfterValidator(_fits)] = Field(
        default=(), description="The script's own arguments.", examples=[["--size", "tiny"]]
    )
    environment: dict[Name, Text] = Field(
        default={},
        max_length=200,
        description="Variables for the script; only harmless names are allowed.",
        examples=[{"OMP_NUM_THREADS": "2"}],
    )
    target: Name = Field(default="auto", description="A target profile, see /v1/targets; auto is the worker's machine.")
    objective: Literal["latency"] = "latency"
    budget: Annotated[float, BeforeValidator(_seconds, json_schema_input_type=float | str), AfterValidator(_finite)] = Field(
        default=600.0, gt=0, le=LONGEST_BUDGET_S, description="What the job may take: seconds, or a text like 10m.", examples=["10m"]
    )
    agent: Name = Field(default="seeds", description="Who proposes candidates, see /v1/agents.")
    min_gain: float = Field(default=1.02, ge=1.0, lt=1000.0, description="End-to-end speedup that must be exceeded.")
    network: bool = Field(default=False, description="Whether the script may use the network; the operator has to allow it.")


class TextFile(Frozen):
    """One more file that the script needs."""

    path: str = Field(min_length=1, max_length=400, examples=["model/net.py"])
    text: str


class JsonSubmission(Options):
    """A whole submission as JSON; files other than text need multipart/form-data."""

    script: str = Field(min_length=1, description="The script's text, at most 1 MiB.", examples=["print('hello')\n"])
    script_name: str = Field(default="script.py", min_length=1, max_length=400)
    files: tuple[TextFile, ...] = Field(default=(), max_length=1000)
