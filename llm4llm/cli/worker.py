"""worker: run jobs that were submitted to the service."""

from llm4llm.cli import say
from llm4llm.cli.opened import settings_with_home
from llm4llm.kit import Bell, set_up_logs
from llm4llm.worker.fleet import Fleet
from llm4llm.worker.loop import Rounds
from llm4llm.worker.process import log_level, run_worker
from llm4llm.worker.signals import drained_by_signals

_POLL_S = 0.2


def worker(count: int, rounds: Rounds, as_json: bool) -> int:
    """Until SIGTERM or Ctrl-C: hands back what runs, and exits 0."""
    settings = settings_with_home()
    set_up_logs(as_json, log_level(settings))
    if count == 1:
        run_worker(settings, rounds)
        return say.EXIT_OK
    with Bell() as stop, drained_by_signals(stop), Fleet(count, rounds, as_json) as fleet:
        while not stop.wait(_POLL_S) and not fleet.wait(0.0):
            pass
    return say.EXIT_OK
