"""Keys and how often they may be used; time stands still unless it is moved."""

import re
from pathlib import Path

import pytest

from llm4llm.errors import BadArguments, NotAuthenticated, RateLimited, UnknownKey
from llm4llm.kit import FrozenClock, iso, sha256_text
from llm4llm.schema.apikey import KeyLimits, Scope
from llm4llm.service.keys import LOCAL_USER, Gate, create_key
from llm4llm.store import Store, open_store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(f"sqlite:///{tmp_path}/jobs.db", tmp_path / "blobs")


def test_a_key_has_256_random_bits_and_only_its_hash_is_stored(store: Store) -> None:
    clock = FrozenClock()
    key, secret = create_key("a", {Scope.READ}, KeyLimits(), store, clock)
    other, another = create_key("a", {Scope.READ}, KeyLimits(), store, clock)
    assert re.fullmatch(r"l4l_[\w-]{43}", secret)
    assert secret != another
    assert key.id != other.id
    assert store.api_keys.by_digest(sha256_text(secret)) == key
    assert store.api_keys.by_digest(secret) is None


def test_who_calls(store: Store) -> None:
    clock = FrozenClock()
    key, secret = create_key("a", {Scope.READ}, KeyLimits(concurrent_jobs=3), store, clock)
    gate = Gate(store, clock, required=True)
    caller = gate.caller(secret)
    assert (caller.owner, caller.scopes, caller.limits.concurrent_jobs) == (key.id, {Scope.READ}, 3)
    assert not caller.may(Scope.SUBMIT)
    for wrong in (None, "", "x", secret + "x"):
        with pytest.raises(NotAuthenticated):
            gate.caller(wrong)
    assert Gate(store, clock, required=False).caller(None) == LOCAL_USER


def test_a_revoked_key_is_forgotten_within_a_second(store: Store) -> None:
    clock = FrozenClock()
    key, secret = create_key("a", {Scope.READ}, KeyLimits(), store, clock)
    gate = Gate(store, clock, required=True)
    gate.caller(secret)
    revoked = store.api_keys.revoke(key.id, iso(clock.now()))
    assert revoked.revoked_at is not None
    assert store.api_keys.revoke(key.id, "later") == revoked
    clock.sleep(1.1)
    with pytest.raises(NotAuthenticated):
        gate.caller(secret)
    with pytest.raises(UnknownKey):
        store.api_keys.revoke("key_0", "later")


def test_so_many_at_once_and_so_many_per_second(store: Store) -> None:
    clock = FrozenClock()
    _, secret = create_key("a", {Scope.READ}, KeyLimits(requests_per_second=2.0, burst=3), store, clock)
    gate = Gate(store, clock, required=True)
    caller = gate.caller(secret)
    for _ in range(3):
        gate.admit(caller)
    with pytest.raises(RateLimited) as raised:
        gate.admit(caller)
    assert raised.value.retry_after_s == pytest.approx(0.5)
    clock.sleep(0.5)
    gate.admit(caller)
    with pytest.raises(RateLimited):
        gate.admit(caller)
    clock.sleep(100.0)
    for _ in range(3):
        gate.admit(caller)
    with pytest.raises(RateLimited):
        gate.admit(caller)


def test_wrong_keys_are_limited_by_address_and_valid_ones_are_not(store: Store) -> None:
    clock = FrozenClock()
    _, secret = create_key("a", {Scope.READ}, KeyLimits(), store, clock)
    gate = Gate(store, clock, required=True)
    for _ in range(60):
        gate.refused("192.0.2.1")
    with pytest.raises(RateLimited) as raised:
        gate.refused("192.0.2.1")
    assert raised.value.retry_after_s == pytest.approx(1.0)
    gate.admit(gate.caller(secret))
    gate.refused("192.0.2.2")
    clock.sleep(1.0)
    gate.refused("192.0.2.1")
    with pytest.raises(RateLimited):
        gate.refused("192.0.2.1")


def test_wrong_keys_take_bounded_memory(store: Store) -> None:
    gate = Gate(store, FrozenClock(), required=True)
    for number in range(10_000):
        gate.refused(str(number))
    assert len(gate._failures) <= 1024


@pytest.mark.parametrize(("name", "scopes"), [("", {Scope.READ}), ("x" * 65, {Scope.READ}), ("a\nb", {Scope.READ}), ("a", set())])
def test_keys_that_make_no_sense(store: Store, name: str, scopes: set[Scope]) -> None:
    with pytest.raises(BadArguments):
        create_key(name, scopes, KeyLimits(), store, FrozenClock())
    assert store.api_keys.all() == ()
