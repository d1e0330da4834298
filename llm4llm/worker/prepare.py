"""What has to lie in a job's folder before its stages begin."""

from pathlib import Path

from llm4llm.schema.job import Job, Request
from llm4llm.store import Store


def prepare(job: Job, folder: Path, store: Store) -> Request:
    """The job's request with paths of this machine. Called each time the job is taken up, so it must leave the same files each time.

    A UserError ends the job as failed with that error's code and text; an InfraError puts it back.
    """
    # jobs of this machine's own user name files where they lie; this is the place to unpack what came with a job over the network
    return job.request
