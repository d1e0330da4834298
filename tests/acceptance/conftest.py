"""Servers for a module's tests, one per database."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import postgresql_server
import pytest
from serving import Service, serving


@pytest.fixture(scope="session")
def postgresql() -> Iterator[str]:
    with postgresql_server.started() as url:
        yield url


@contextmanager
def _database(kind: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """URL of a new database; empty for SQLite in the home folder."""
    if kind == "sqlite":
        yield ""
    else:
        with postgresql_server.database(request.getfixturevalue("postgresql")) as url:
            yield url


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def service(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A server without keys."""
    home: Path = tmp_path_factory.mktemp("served")
    with _database(request.param, request) as database, serving(home, database) as running:
        yield running


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def guarded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A server that requires keys."""
    home: Path = tmp_path_factory.mktemp("guarded")
    with _database(request.param, request) as database, serving(home, database, "--require-keys") as running:
        yield running
