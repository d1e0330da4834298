"""keys: make, list and revoke API keys."""

import json
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from rich.table import Table

from llm4llm.cli import say
from llm4llm.cli.opened import opened
from llm4llm.errors import BadArguments
from llm4llm.kit import format_duration, iso, parse_duration
from llm4llm.schema.apikey import ApiKey, KeyLimits, Scope
from llm4llm.service.keys import create_key


@dataclass(frozen=True)
class Wanted:
    """What the user typed; None takes the default."""

    name: str
    scopes: tuple[Scope, ...]
    concurrent_jobs: int | None = None
    request_bytes: int | None = None
    budget: str | None = None
    requests_per_second: float | None = None
    burst: int | None = None


def create(wanted: Wanted, as_json: bool) -> int:
    """Print the secret, once and on stdout alone, so that it can be piped to where it is kept."""
    given = {
        "concurrent_jobs": wanted.concurrent_jobs,
        "request_bytes": wanted.request_bytes,
        "budget_seconds": None if wanted.budget is None else parse_duration(wanted.budget),
        "requests_per_second": wanted.requests_per_second,
        "burst": wanted.burst,
    }
    try:
        limits = KeyLimits.model_validate({name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        first = error.errors()[0]
        raise BadArguments(f"{'.'.join(map(str, first['loc']))}: {first['msg'].lower()}", "see llm4llm keys create --help") from error
    with opened() as local:
        key, secret = create_key(wanted.name, wanted.scopes, limits, local.store, local.clock)
    if as_json:
        say.result(json.dumps({**_facts(key), "key": secret}))
        return say.EXIT_OK
    say.note(f"{key.id} for {key.name!r} may {', '.join(sorted(key.scopes))}; the key is shown this once:")
    say.result(secret)
    return say.EXIT_OK


def list_keys(as_json: bool) -> int:
    """All keys without their secrets; one JSON object per line with --json."""
    with opened() as local:
        found = local.store.api_keys.all()
    if as_json:
        for key in found:
            say.result(json.dumps(_facts(key)))
        return say.EXIT_OK
    if not found:
        say.note("there is no API key yet: make one with llm4llm keys create NAME")
        return say.EXIT_OK
    table = Table("key", "name", "scopes", "jobs", "budget", "created", "last job", "revoked", box=None, pad_edge=False)
    for key in found:
        limits = key.limits
        times = [(at or "")[:19] for at in (key.created_at, key.last_used_at, key.revoked_at)]
        scopes, budget = ", ".join(sorted(key.scopes)), format_duration(limits.budget_seconds)
        table.add_row(*say.cells(key.id, key.name, scopes, limits.concurrent_jobs, budget, *times))
    say.tables().print(table)
    return say.EXIT_OK


def revoke(key_id: str, as_json: bool) -> int:
    """The key works no more, within a second; its jobs stay, and go on."""
    with opened() as local:
        key = local.store.api_keys.revoke(key_id, iso(local.clock.now()))
    say.result(json.dumps(_facts(key)) if as_json else f"{key.id} ({key.name}) was revoked at {(key.revoked_at or '')[:19]}")
    return say.EXIT_OK


def _facts(key: ApiKey) -> dict[str, Any]:
    return {**key.model_dump(mode="json", exclude={"scopes"}), "scopes": sorted(key.scopes)}
