"""What signals do to a worker."""

import signal
import subprocess
import sys

import pytest

PROGRAM = """
import time
from llm4llm.kit import Bell
from llm4llm.worker.signals import drained_by_signals
with Bell() as stop, drained_by_signals(stop):
    print("ready", flush=True)
    stop.wait(None)
    print("draining", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_the_first_signal_asks_and_the_second_one_ends(number: signal.Signals) -> None:
    process = subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    assert process.stdout.readline() == "draining\n"
    assert process.poll() is None
    process.send_signal(number)
    assert process.wait(30) == -number
    process.stdout.close()
