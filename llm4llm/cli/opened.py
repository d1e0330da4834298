"""What commands work with: settings and the store, opened for one command and closed after it."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from llm4llm.errors import InfraError
from llm4llm.kit import Clock, SystemClock
from llm4llm.settings import Settings, load_settings
from llm4llm.store import Store, open_store


@dataclass(frozen=True)
class Opened:
    settings: Settings
    store: Store
    clock: Clock
    rng: random.Random


@contextmanager
def opened() -> Iterator[Opened]:
    """Everything that a command needs. BadSettings, StoreUnavailable, or InfraError if the home folder can't be written."""
    settings = settings_with_home()
    store = open_store(settings.database, settings.blobs)
    try:
        yield Opened(settings, store, SystemClock(), random.Random())  # noqa: S311 (ids, not secrets)
    finally:
        store.close()


def settings_with_home() -> Settings:
    """Settings whose home folder exists. BadSettings, or InfraError if it can't be made."""
    settings = load_settings()
    try:
        settings.home.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InfraError(f"{settings.home} can't be made ({error.strerror})", "set LLM4LLM_HOME to a folder that can be written") from error
    return settings
