"""Run one job in this process: real children, real store, and nothing left behind however it ends."""

from llm4llm.assets import resolve_target, seeds
from llm4llm.kit import Clock, SystemClock
from llm4llm.pipeline.advance import advance
from llm4llm.pipeline.steps import Plan
from llm4llm.pipeline.transitions import ENDED
from llm4llm.sandbox import Limits, Sandbox
from llm4llm.schema.job import Job
from llm4llm.service.output import keep_output
from llm4llm.settings import Settings
from llm4llm.stages.tools import Progress, Tools
from llm4llm.store import Store, open_store
from llm4llm.worker.confirm import Confirmation
from llm4llm.worker.host import HostSetting, LiveHost
from llm4llm.worker.judge import JobJudge
from llm4llm.worker.lock import job_lock
from llm4llm.worker.memory import machine_bytes
from llm4llm.worker.scratch import clear_ended, job_folder
from llm4llm.worker.signals import orderly_end
from llm4llm.worker.uploads import laid_out

_MEMORY_SHARE = 0.9  # of the machine's: the rest keeps the machine answering


def run_job(job_id: str, settings: Settings, progress: Progress) -> Job:
    """The job at its end, from wherever it was; one that has ended is returned as it is.

    UnknownJob if there is none, JobNotResumable while another process runs it. KeyboardInterrupt (SIGINT, SIGTERM, SIGHUP) and InfraError
    pass on with the job queued, to be continued. Every child has ended when this returns or raises.
    """
    store = open_store(settings.database, settings.blobs)
    try:
        job = store.jobs.get(job_id)
        if job.status in ENDED:
            return job
        folder = job_folder(settings.home, job_id)
        with job_lock(folder, job_id), orderly_end(), Sandbox(settings.home) as sandbox:
            clock = SystemClock()
            job = laid_out(job, folder, store)
            host = LiveHost(sandbox, _setting(job, settings))
            try:
                job = advance(job_id, store, _tools(job, store, host, progress, clock), _plan())
            finally:
                host.close()
            if job.status in ENDED:
                if job.request.uploaded:
                    keep_output(job_id, folder, store, clock)
                clear_ended(folder, job)
            return job
    finally:
        store.close()


def _setting(job: Job, settings: Settings) -> HostSetting:
    memory = settings.child_memory_bytes or int(_MEMORY_SHARE * machine_bytes())
    limits = Limits(memory_bytes=memory, network=job.request.network or not job.request.uploaded)
    return HostSetting(job, job_folder(settings.home, job.id), limits, settings.script_time_limit_s)


def _tools(job: Job, store: Store, host: LiveHost, progress: Progress, clock: Clock) -> Tools:
    return Tools(
        host=host,
        judge=JobJudge(host.sandbox, job),
        confirm=Confirmation(host.sandbox, host.setting, store),
        clock=clock,
        progress=progress,
        blobs=store.blobs,
        scratch=host.setting.scratch,
        deadline=float("inf"),
        cancelled=lambda: store.jobs.cancel_asked(job.id),
    )


def _plan() -> Plan:
    return Plan(seeds=seeds(), resolve_target=resolve_target)
