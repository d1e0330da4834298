"""Submit, read and cancel jobs."""

import random

from llm4llm.assets import AUTO, agent_roles, target_profile
from llm4llm.errors import UnknownAgent, UserError
from llm4llm.kit import Clock, iso, new_id
from llm4llm.schema.event import Event
from llm4llm.schema.job import Job, JobStatus, Request
from llm4llm.schema.reason import Reason
from llm4llm.service.script import check_script, read_script
from llm4llm.store import Queue, Store

_CANCELLED = Reason(code="cancelled", text="cancelled as asked, before anybody went on with it; finished stages are kept")


def submit(request: Request, store: Store, clock: Clock, rng: random.Random, queue: Queue = Queue.WORKERS) -> Job:
    """A stored job: queued, or failed at once with its reason if the request can't be served as it is.

    No worker takes a job of the foreground queue: whoever submits it there runs it.

    `script_sha256` is set from the file's content, which is kept among the blobs: what was asked for stays readable whatever becomes of the
    file.
    """
    at = iso(clock.now())
    job_id = new_id("job", clock, rng)
    try:
        content = read_script(request.script)
        request = request.model_copy(update={"script_sha256": store.blobs.put(content)})
        check_script(request.script, content, request.python)
        check_names(request.target, request.agent)
    except UserError as error:
        reason = Reason(code=error.code, text=str(error))
        job = Job(id=job_id, request=request, status=JobStatus.FAILED, reason=reason, created_at=at, ended_at=at)
    else:
        job = Job(id=job_id, request=request, status=JobStatus.QUEUED, created_at=at)
    store.jobs.add(job, queue)
    return job


def cancel(job_id: str, store: Store, clock: Clock) -> bool:
    """Ask for a job to end between two steps; False if it has ended already. UnknownJob if there is none.

    One that nobody runs ends at once.
    """
    job = store.jobs.get(job_id)
    at = iso(clock.now())
    with store.transaction():
        if not store.jobs.ask_to_cancel(job_id, at):
            return False
        if store.jobs.move(job_id, {JobStatus.QUEUED}, JobStatus.CANCELLED, _CANCELLED, at):
            text = f"{JobStatus.CANCELLED.value}: {_CANCELLED.text}"
            store.events.add(Event(job=job_id, kind="decision", stage=job.stage, text=text), at)
    return True


def check_names(target: str, agent: str) -> None:
    """UnknownTarget or UnknownAgent for a name that is not shipped."""
    if target != AUTO:
        target_profile(target)
    agents = tuple(role.name for role in agent_roles())
    if agent not in agents:
        raise UnknownAgent(agent, agents)
