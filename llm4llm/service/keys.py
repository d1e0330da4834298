"""API keys: made, listed, revoked, and recognised."""

import random
import secrets
import threading
from collections import OrderedDict
from collections.abc import Collection

from llm4llm.errors import BadArguments, NotAuthenticated, RateLimited
from llm4llm.kit import Clock, TokenBucket, iso, new_id, sha256_text
from llm4llm.schema.apikey import ApiKey, Caller, KeyLimits, Scope
from llm4llm.store import Store

_PREFIX = "l4l_"
_RANDOM_BYTES = 32
_FRESH_S = 1.0  # how long a key that was looked up is taken as it was: a revoked one works for so long at most
_REMEMBERED = 1024
_FAILURES_PER_S, _FAILURES_AT_ONCE = 1.0, 60  # requests without a valid key, by the address that they come from
_UNLIMITED = KeyLimits(concurrent_jobs=1_000_000, request_bytes=1 << 62, budget_seconds=1e9, requests_per_second=1e9, burst=1_000_000_000)
LOCAL_USER = Caller(owner=None, scopes=frozenset(Scope), limits=_UNLIMITED)


def create_key(name: str, scopes: Collection[Scope], limits: KeyLimits, store: Store, clock: Clock) -> tuple[ApiKey, str]:
    """A stored key, and its secret, which nobody can show again."""
    if not name.strip() or len(name) > 64 or not name.isprintable():
        raise BadArguments("a key needs a name of 1 to 64 printable characters", "say who or what will use it")
    if not scopes:
        raise BadArguments("a key without scopes can do nothing", f"give at least one of: {', '.join(Scope)}")
    secret = _PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)
    key_id = new_id("key", clock, random.SystemRandom())
    key = ApiKey(id=key_id, name=name, scopes=frozenset(scopes), limits=limits, created_at=iso(clock.now()))
    store.api_keys.add(key, sha256_text(secret))
    return key, secret


class Gate:
    """Says who calls, and how often they may. Several threads may use one."""

    def __init__(self, store: Store, clock: Clock, required: bool) -> None:
        self.required = required
        self._store = store
        self._clock = clock
        self._lock = threading.Lock()
        self._known: OrderedDict[str, tuple[Caller, float]] = OrderedDict()
        self._buckets: dict[str, TokenBucket] = {}
        self._failures: OrderedDict[str, TokenBucket] = OrderedDict()

    def known(self, secret: str | None) -> Caller | None:
        """The caller if that needs no look at the database."""
        if not self.required:
            return LOCAL_USER
        with self._lock:
            found = self._known.get(_digest(secret))
        return found[0] if found is not None and self._clock.monotonic() < found[1] else None

    def caller(self, secret: str | None) -> Caller:
        """The key's caller; NotAuthenticated if there is no such key."""
        known = self.known(secret)
        if known is not None:
            return known
        digest = _digest(secret)
        key = self._store.api_keys.by_digest(digest)
        if key is None:
            with self._lock:
                self._known.pop(digest, None)
            raise NotAuthenticated
        caller = Caller(owner=key.id, scopes=key.scopes, limits=key.limits)
        with self._lock:
            self._known[digest] = (caller, self._clock.monotonic() + _FRESH_S)
            while len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        return caller

    def refused(self, address: str) -> None:
        """Count a request without a valid key; RateLimited once there were too many from an address. Valid keys are never kept waiting."""
        now = self._clock.monotonic()
        with self._lock:
            bucket = self._failures.pop(address, None) or TokenBucket(_FAILURES_PER_S, _FAILURES_AT_ONCE, now)
            self._failures[address] = bucket
            while len(self._failures) > _REMEMBERED:
                self._failures.popitem(last=False)
            wait_s = bucket.take(now)
        if wait_s > 0:
            raise RateLimited(wait_s, "too many requests without a valid key from this address")

    def admit(self, caller: Caller) -> None:
        """RateLimited if the key has used up its requests for now. Each server process counts for itself."""
        if caller.owner is None:
            return
        now = self._clock.monotonic()
        with self._lock:
            bucket = self._buckets.get(caller.owner)
            if bucket is None or (bucket.per_second, bucket.capacity) != (caller.limits.requests_per_second, caller.limits.burst):
                bucket = self._buckets[caller.owner] = TokenBucket(caller.limits.requests_per_second, caller.limits.burst, now)
            wait_s = bucket.take(now)
        if wait_s > 0:
            raise RateLimited(wait_s)


def _digest(secret: str | None) -> str:
    if not secret:
        raise NotAuthenticated
    return sha256_text(secret)
