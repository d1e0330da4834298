"""Who sees which job: its owner and admins; for anybody else it does not exist."""

from llm4llm.errors import NotPermitted, UnknownJob
from llm4llm.schema.apikey import Caller, Scope
from llm4llm.store import Store
from llm4llm.store.listing import Mark


def demand(caller: Caller, scope: Scope) -> None:
    """NotPermitted if the caller's key lacks the scope."""
    if not caller.may(scope):
        raise NotPermitted(scope.value)


def visible(job_id: str, caller: Caller, store: Store) -> Mark:
    """UnknownJob for a job that does not exist, and in the same words for one of another owner."""
    check_id(job_id)
    return seen(job_id, caller, store.listing.marks((job_id,)).get(job_id))


def check_id(job_id: str) -> None:
    """UnknownJob for what no job's id looks like, before any database is asked."""
    if not job_id.isascii() or not job_id.isprintable() or len(job_id) > 64:
        raise UnknownJob(repr(job_id[:64]))


def seen(job_id: str, caller: Caller, mark: Mark | None) -> Mark:
    """The mark that was read, if the caller may see the job."""
    if mark is None or not (caller.sees_all or mark.owner == caller.owner):
        raise UnknownJob(job_id)
    return mark
