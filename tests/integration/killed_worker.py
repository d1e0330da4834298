"""A worker that runs one job and can be killed while it does: killed_worker.py JOB [STAGE SECONDS].

With STAGE, the process ends itself with SIGKILL so many seconds after that stage has begun.
"""

import os
import signal
import sys
import threading

from llm4llm.schema.event import Event
from llm4llm.settings import load_settings
from llm4llm.worker.local import run_job


def main() -> None:
    stage, seconds = (sys.argv[2], float(sys.argv[3])) if len(sys.argv) > 2 else (None, 0.0)

    def kill() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def progress(event: Event) -> None:
        print(event.kind, event.stage, event.text, flush=True)
        if event.kind == "stage_started" and event.stage == stage:
            if seconds:
                threading.Timer(seconds, kill).start()
            else:
                kill()

    job = run_job(sys.argv[1], load_settings(), progress)
    print(job.status.value, job.reason.code if job.reason else "")


if __name__ == "__main__":
    main()
