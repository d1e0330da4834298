"""API keys by the sha256 of the key."""

from typing import Any

from sqlalchemy import select, update

from llm4llm.errors import UnknownKey
from llm4llm.schema.apikey import ApiKey
from llm4llm.store.rows import ApiKeyRow
from llm4llm.store.session import Sessions, plain


class ApiKeys:
    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    def add(self, key: ApiKey, digest: str) -> None:
        facts = {"scopes": sorted(key.scopes), "limits": key.limits.model_dump(mode="json")}
        row = ApiKeyRow(id=key.id, name=plain(key.name)[:64], digest=digest, facts=facts, created_at=key.created_at)
        with self._sessions.transaction() as session:
            session.add(row)

    def by_digest(self, digest: str) -> ApiKey | None:
        """The key that is not revoked; None if there is none."""
        query = select(ApiKeyRow).where(ApiKeyRow.digest == digest, ApiKeyRow.revoked_at.is_(None))
        with self._sessions.reading() as session:
            row = session.scalars(query).first()
            return None if row is None else _key(row)

    def all(self) -> tuple[ApiKey, ...]:
        """Every key, revoked ones included, oldest first."""
        with self._sessions.reading() as session:
            return tuple(_key(row) for row in session.scalars(select(ApiKeyRow).order_by(ApiKeyRow.created_at, ApiKeyRow.id)))

    def revoke(self, key_id: str, at: str) -> ApiKey:
        """The key, revoked now or earlier; UnknownKey if there is none."""
        change = update(ApiKeyRow).where(ApiKeyRow.id == key_id, ApiKeyRow.revoked_at.is_(None)).values(revoked_at=at)
        with self._sessions.transaction() as session:
            session.execute(change)
            row = session.get(ApiKeyRow, key_id)
            if row is None:
                raise UnknownKey(key_id)
            return _key(row)


def _key(row: ApiKeyRow) -> ApiKey:
    facts: dict[str, Any] = row.facts
    return ApiKey(
        id=row.id,
        name=row.name,
        scopes=frozenset(facts["scopes"]),
        limits=facts["limits"],
        created_at=row.created_at,
        revoked_at=row.revoked_at,
        last_used_at=row.last_used_at,
    )
