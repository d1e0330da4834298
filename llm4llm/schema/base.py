"""The base of every stored type: frozen, closed, strict about unknown fields."""

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    """An immutable value; unknown fields are refused so that a typo never passes as data."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="null")
