"""Walks the stages of a held job with real children."""

import os
from contextlib import AbstractContextManager

from llm4llm.assets import resolve_target, seeds
from llm4llm.errors import InfraError, Llm4llmError
from llm4llm.pipeline.advance import advance, end
from llm4llm.pipeline.ending import Ending
from llm4llm.pipeline.steps import Plan
from llm4llm.sandbox import Limits
from llm4llm.schema.job import Job, JobStatus, Request
from llm4llm.schema.reason import Reason
from llm4llm.settings import Settings
from llm4llm.stages.tools import Tools
from llm4llm.worker.confirm import Confirmation
from llm4llm.worker.device import device_name
from llm4llm.worker.folder import prepare
from llm4llm.worker.held import Held
from llm4llm.worker.host import HostSetting, LiveHost
from llm4llm.worker.judge import JobJudge
from llm4llm.worker.memory import machine_bytes

_MEMORY_SHARE = 0.9  # of the machine's: the rest keeps the machine answering


def walk(job: Job, held: Held) -> Job:
    """The job at its end; see `advance` for what passes on instead."""
    try:
        job = prepare(job, held.folder, held.store)
    except InfraError:
        raise
    except Llm4llmError as error:
        return end(job, Ending(JobStatus.FAILED, Reason(code=error.code, text=str(error))), held.store, held.clock, held.progress)
    host = LiveHost(held.sandbox, HostSetting(job, held.folder, _limits(held.settings), held.settings.script_time_limit_s))
    judge = JobJudge(held.sandbox, job)
    try:
        return advance(job.id, held.store, _tools(job, held, host, judge), Plan(seeds=seeds(), resolve_target=resolve_target))
    finally:
        judge.close()
        host.close()


def _limits(settings: Settings) -> Limits:
    return Limits(memory_bytes=settings.child_memory_bytes or int(_MEMORY_SHARE * machine_bytes()))


def _tools(job: Job, held: Held, host: LiveHost, judge: JobJudge) -> Tools:
    return Tools(
        host=host,
        judge=judge,
        confirm=Confirmation(held.sandbox, host.setting, held.store),
        clock=held.clock,
        progress=held.progress,
        blobs=held.store.blobs,
        scratch=held.folder,
        deadline=float("inf"),
        cancelled=held.cancelled,
        device=lambda: _device(job.request, held),
        request=job.request,
    )


def _device(request: Request, held: Held) -> AbstractContextManager[None]:
    return held.device(device_name(request.environment, os.environ))
