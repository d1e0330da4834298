"""A child that does what it is told, mostly things that a child must not do."""

import ctypes
import os
import signal
import subprocess
import sys
import time

from llm4llm.harness.channel import FD_VARIABLE, Channel

fd = int(os.environ[FD_VARIABLE])
channel = Channel.inherited()
SLEEP = [sys.executable, "-c", "import time; time.sleep(120)"]


def do(op: str, payload: dict) -> None:
    if op == "echo":
        channel.ok(payload)
    elif op == "variables":
        channel.ok(dict(os.environ))
    elif op == "count":
        for number in range(payload["to"]):
            channel.event({"number": number})
        channel.ok({})
    elif op == "refuse":
        channel.error("unsuitable", "not today")
    elif op == "exit":
        print("last words", file=sys.stderr, flush=True)
        os._exit(payload["code"])
    elif op == "signal":
        os.kill(os.getpid(), payload["number"])
        time.sleep(60)
    elif op == "hang":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(120)
    elif op == "close":
        os.close(fd)
        time.sleep(120)
    elif op == "garbage":
        os.write(fd, payload["text"].encode())
        time.sleep(120)
    elif op == "flood":
        for _ in range(payload["lines"]):
            os.write(2, b"x" * 1023 + b"\n")
        os.write(2, b"the end\n")
        channel.ok({})
    elif op == "eat":
        held = []
        while True:
            held.append(bytearray(os.urandom(1 << 20)) * 8)
            time.sleep(0.01)
    elif op == "fork":
        pids = [subprocess.Popen(SLEEP, start_new_session=payload["own_session"]).pid for _ in range(payload["count"])]
        channel.ok({"pids": pids})
    elif op == "connect":
        import socket

        try:
            socket.create_connection(("127.0.0.1", payload["port"]), timeout=5).close()
        except OSError as error:
            channel.ok({"connected": False, "error": str(error)})
        else:
            channel.ok({"connected": True})
    elif op == "write":
        try:
            with open(payload["path"], "wb") as file:
                file.write(b"0" * payload["bytes"])
        except OSError as error:
            channel.ok({"error": error.strerror})
        else:
            channel.ok({"error": None})
    elif op == "crash":
        ctypes.string_at(0)


signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
for asked_op, asked_payload in channel.requests():
    do(asked_op, asked_payload)
