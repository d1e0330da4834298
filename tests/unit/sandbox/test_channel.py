"""What the parent takes from a child that has the nonce and means harm, as a script can: it shares its host's process."""

import json
import resource
import socket
import threading
import time
from typing import Any

import pytest

from llm4llm.harness import channel as childs
from llm4llm.sandbox import channel as parents
from llm4llm.sandbox.answer import Failed
from llm4llm.sandbox.channel import ParentChannel, ProtocolBroken


def receive(body: bytes) -> dict[str, Any]:
    """What the parent makes of a line with the nonce and this rest."""
    channel = ParentChannel()
    child = socket.socket(fileno=channel.child_fd)
    line = f'{{"nonce": "{channel.nonce}", "id": 1, '.encode() + body + b"}\n"

    def write() -> None:
        try:
            child.sendall(line)
        except OSError:
            return

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    try:
        return channel.receive(1, time.monotonic() + 30)
    finally:
        channel._socket.close()
        writer.join()
        child.detach()
        channel.close()


@pytest.mark.parametrize(
    "body",
    [
        b'"ok": {"roots": [' + b"{}," * 2_000_000 + b"{}]}",
        b'"ok": {"roots": [' + b"[]," * 2_000_000 + b"[]]}",
        b'"ok": {"text": "' + b"x" * (parents.MAX_LINE_BYTES + 1) + b'"}',
        b'"ok": ' + b'{"":' * 2_000_000 + b"1" + b"}" * 2_000_000,
    ],
    ids=["objects", "lists", "text", "depth"],
)
def test_a_line_is_bounded_before_it_is_parsed(body: bytes) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ProtocolBroken):
        receive(body)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10  # KiB


@pytest.mark.parametrize(
    "body", [b'"ok": ' + b"[" * 100_000, b'"ok": []', b'"ok": "x"', b'"event": []', b'"event": null', b'"ok": ' + b"9" * 5000]
)
def test_what_is_no_object_breaks_the_protocol(body: bytes) -> None:
    with pytest.raises(ProtocolBroken):
        receive(body)


def test_the_profile_of_a_large_mixture_of_experts_fits() -> None:
    paths = [f"model.layers.{layer}.mlp.experts.{expert}.down_proj" for layer in range(58) for expert in range(256)]
    families = [{"id": str(number), "paths": paths} for number in range(9)]
    assert receive(f'"ok": {json.dumps({"hotspots": families})}'.encode())["ok"]["hotspots"] == families


def test_a_child_says_so_when_its_answer_is_too_long() -> None:
    ours, theirs = socket.socketpair()
    child = childs.Channel(theirs, "n")
    child.ok({"text": "x" * childs.MAX_LINE_BYTES})
    assert json.loads(ours.recv(1 << 16))["error"]["kind"] == "too_large"
    ours.close()
    theirs.close()


def test_both_ends_know_the_same_limit() -> None:
    assert childs.MAX_LINE_BYTES == parents.MAX_LINE_BYTES


def test_the_words_of_a_failure_are_cut() -> None:
    failed = Failed("k" * 10_000, "r" * 10_000_000)
    assert (len(failed.kind), len(failed.reason)) == (64, 4_000)
    assert Failed("died", "it was ended").reason == "it was ended"
