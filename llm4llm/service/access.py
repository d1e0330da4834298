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
    if not job_id.isascii() or not job_id.isprintable() or len(job_id) > 64:
        raise UnknownJob(repr(job_id[:64]))
    mark = store.listing.mark(job_id)
    if not caller.sees_all and mark.owner != caller.owner:
        raise UnknownJob(job_id)
    return mark
