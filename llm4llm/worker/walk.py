"""Walks the stages of a held job with real children."""

import os
from contextlib import AbstractContextManager

from llm4llm.assets import resolve_target, seeds
from llm4llm.errors import InfraError, Llm4llmError
from llm4llm.pipeline.advance import advance, end
from llm4llm.pipeline.ending import Ending
from llm4llm.pipeline.steps import Plan
from llm4llm.sandbox import Files, Limits
from llm4llm.schema.job import Job, JobStatus, Request
from llm4llm.schema.reason import Reason
from llm4llm.stages.task.run import MIN_SHARE
from llm4llm.stages.tools import TASKS, Tools
from llm4llm.worker.confirm import Confirmation
from llm4llm.worker.device import device_name
from llm4llm.worker.folder import prepare
from llm4llm.worker.held import Held
from llm4llm.worker.host import HostSetting, LiveHost
from llm4llm.worker.judge import JobJudge
from llm4llm.worker.memory import machine_bytes
from llm4llm.worker.scratch import own_folder

_PROCESSES = 256  # of an uploaded script, threads not counted
_MEMORY_SHARE = 0.9  # of the machine's: the rest keeps the machine answering


def walk(job: Job, held: Held, min_share: float = MIN_SHARE) -> Job:
    """The job at its end; see `advance` for what passes on instead. `min_share`: of the workload, for a hotspot to be looked at."""
    limits, files = _limits(job.request, held), _files(job.request, held)  # by the request as it came: once laid out, its paths are ours
    try:
        job = prepare(job, held.folder, held.store)
    except InfraError:
        raise
    except Llm4llmError as error:
        return end(job, Ending(JobStatus.FAILED, Reason(code=error.code, text=str(error))), held.store, held.clock, held.progress)
    host = LiveHost(held.sandbox, HostSetting(job, held.folder, limits, held.settings.script_time_limit_s, files))
    judge = JobJudge(held.sandbox, job, held.folder)
    plan = Plan(seeds=seeds(), resolve_target=resolve_target, min_share=min_share)
    try:
        return advance(job.id, held.store, _tools(job, held, host, judge), plan)
    finally:
        judge.close()
        host.close()


def _limits(request: Request, held: Held) -> Limits:
    """What a script may use. An uploaded one gets a share of disk and processes, and no network unless that was asked for."""
    memory = held.settings.child_memory_bytes or int(_MEMORY_SHARE * machine_bytes())
    if not request.uploaded:
        return Limits(memory_bytes=memory)
    return Limits(
        memory_bytes=memory,
        processes=_PROCESSES,
        disk_bytes=held.settings.job_disk_bytes,
        disk_folders=(held.folder, own_folder(held.folder) / TASKS),  # a file that was open when its task was moved can still grow
        network=request.network,
    )


def _files(request: Request, held: Held) -> Files | None:
    """An uploaded script sees its own job's folder and nothing else of what is kept here."""
    folder = held.folder.absolute()
    visible = (folder, own_folder(folder))
    return Files(hidden=held.sandbox.hidden, visible=visible, writable=(folder,)) if request.uploaded else None


def _tools(job: Job, held: Held, host: LiveHost, judge: JobJudge) -> Tools:
    return Tools(
        host=host,
        judge=judge,
        confirm=Confirmation(held.sandbox, host.setting, held.store),
        clock=held.clock,
        progress=held.progress,
        blobs=held.store.blobs,
        scratch=held.folder,
        private=own_folder(held.folder),
        deadline=float("inf"),
        cancelled=held.cancelled,
        device=lambda: _device(job.request, held),
        request=job.request,
    )


def _device(request: Request, held: Held) -> AbstractContextManager[None]:
    return held.device(device_name(request.environment, os.environ))
