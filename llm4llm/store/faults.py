"""What can be wrong with a database, each with its fix."""

import sqlite3

from llm4llm.errors import DiskFull, InfraError, StoreUnavailable

_CONDITIONS = {"OperationalError", "IdleInTransactionSessionTimeout"}
_ELSEWHERE = "or keep jobs elsewhere by setting LLM4LLM_HOME to another folder"


class DatabaseCorrupt(StoreUnavailable):
    code = "database_corrupt"
    retryable = False

    def __init__(self, place: str, why: str) -> None:
        super().__init__(f"the database {place} is damaged ({why})", f"move it away (a new one is made), {_ELSEWHERE}")


class DatabaseTooNew(StoreUnavailable):
    code = "database_too_new"
    retryable = False

    def __init__(self, place: str, revision: str) -> None:
        super().__init__(f"the database {place} was written by a newer llm4llm (schema {revision})", f"upgrade llm4llm, {_ELSEWHERE}")


class DatabaseForeign(StoreUnavailable):
    code = "database_foreign"
    retryable = False

    def __init__(self, place: str, tables: tuple[str, ...]) -> None:
        what = f"the database {place} holds tables that llm4llm did not make ({', '.join(tables[:4])})"
        super().__init__(what, f"give llm4llm a database of its own, {_ELSEWHERE}")


class BlobDamaged(InfraError):
    code = "blob_damaged"
    retryable = False

    def __init__(self, sha256: str) -> None:
        super().__init__(f"the stored file {sha256} is missing or no longer what was stored", "run the job again from the start")


def fault_of(error: BaseException, place: str) -> InfraError | None:
    """Our error for a driver's one; None for what is not the database's condition (a constraint, our own SQL)."""
    text = str(error).strip().split("\n")[0]
    lower = text.lower()
    if isinstance(error, sqlite3.DatabaseError) and any(part in lower for part in ("malformed", "not a database", "disk image")):
        return DatabaseCorrupt(place, text)
    if "disk is full" in lower or "no space left" in lower:
        return DiskFull(f"there is no space left for the database {place}", "free some space, then continue with --resume")
    # psycopg has a class of its own for each condition of the server, all below this one
    if _CONDITIONS & {kind.__name__ for kind in type(error).__mro__}:
        return StoreUnavailable(
            f"the database {place} can't be used ({text})", "check that it is there, writable and not held by another program"
        )
    return None
