"""A child of a stage: starts a process of its own that would outlive it, and answers."""

import subprocess
import sys
import time

from llm4llm.harness.channel import Channel
from llm4llm.harness.confine import confine

confine()
channel = Channel.inherited()
for _, payload in channel.requests():
    subprocess.Popen(["sleep", "300"], start_new_session=payload["own_session"])
    time.sleep(payload["seconds"])
    channel.ok({})
sys.exit(0)
