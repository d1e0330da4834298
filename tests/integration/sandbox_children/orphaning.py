"""A parent of its own: starts a child with grandchildren through the sandbox, tells their numbers, and waits to be killed."""

import json
import os
import sys
import time
from pathlib import Path

from llm4llm.sandbox import ChildSpec, Ok, Sandbox

home, children = Path(sys.argv[1]), sys.argv[2]
sandbox = Sandbox(home)
child = sandbox.start(ChildSpec("misbehaving", sys.executable, home, environment={**os.environ, "PYTHONPATH": children}))
answer = child.request("fork", {"count": 2, "own_session": False}, 60)
assert isinstance(answer, Ok), answer
print(json.dumps([child.pid, *answer.result["pids"]]), flush=True)
time.sleep(120)
