"""Connections as clients misuse them, against a small app behind the real protocol."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from llm4llm.api import protocol
from llm4llm.api.protocol import Protocol

MOST = 6
HEAD = b"Host: x\r\n"


async def length(request: Request) -> Response:
    try:
        return PlainTextResponse(str(len(await request.body())))
    except ClientDisconnect:
        return PlainTextResponse("gone", 400)


async def wait(request: Request) -> Response:
    await asyncio.sleep(1.2)
    return PlainTextResponse("waited")


async def stream(request: Request) -> Response:
    async def parts() -> AsyncIterator[bytes]:
        for _ in range(4):
            await asyncio.sleep(0.3)
            yield b"part"

    return StreamingResponse(parts())


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(protocol, "HEAD_S", 0.5)
        patch.setattr(protocol, "IDLE_BODY_S", 0.5)
        patch.setattr(protocol, "_LINGER_S", 0.3)
        app = Starlette(routes=[Route("/", length, methods=["GET", "POST"]), Route("/wait", wait), Route("/stream", stream)])
        listening = socket.create_server(("127.0.0.1", 0))
        config = uvicorn.Config(app, http=Protocol, log_config=None, lifespan="off", limit_concurrency=MOST, timeout_keep_alive=1)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        while not server.started:
            time.sleep(0.01)
        yield listening.getsockname()[1]
        server.should_exit = True
        thread.join(10)


def connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=5)


def answered(raw: socket.socket) -> tuple[int, bytes]:
    """Status and body of what comes until the connection ends; 0 if nothing does."""
    answer = b""
    while block := raw.recv(1 << 16):
        answer += block
    head, _, body = answer.partition(b"\r\n\r\n")
    return (int(head.split()[1]) if head else 0), body


def code(body: bytes) -> str:
    return str(json.loads(body)["code"])


def asked(port: int, *pieces: bytes, pause_s: float = 0.0) -> tuple[int, bytes]:
    with connected(port) as raw:
        for piece in pieces:
            raw.sendall(piece)
            time.sleep(pause_s)
        return answered(raw)


@pytest.mark.parametrize("begun", [b"G", b"GET / HTTP/1.1\r\nHost: x\r\nX-A: ", b"GET / HTTP/1.1\r\nHost: x\r\n"])
def test_headers_have_to_come_in_time(port: int, begun: bytes) -> None:
    began = time.monotonic()
    status, body = asked(port, begun)
    assert (status, code(body)) == (408, "request_timeout")
    assert time.monotonic() - began < 4


def test_they_do_not_come_in_time_drop_by_drop(port: int) -> None:
    with connected(port) as raw:
        raw.sendall(b"GET / HTTP/1.1\r\n")
        try:
            for _ in range(20):
                raw.sendall(b"X: y\r\n")
                time.sleep(0.1)
        except OSError:
            pass
        assert answered(raw)[0] == 408


def test_a_connection_on_which_nothing_comes_is_closed(port: int) -> None:
    assert asked(port) == (0, b"")


def test_so_is_one_whose_second_request_stays_half(port: int) -> None:
    with connected(port) as raw:
        raw.sendall(b"GET / HTTP/1.1\r\n" + HEAD + b"\r\n")
        assert b"200" in raw.recv(1 << 16)
        raw.sendall(b"GET / HT")
        assert answered(raw)[0] == 408


def test_bytes_of_a_body_have_to_keep_coming(port: int) -> None:
    head = b"POST / HTTP/1.1\r\n" + HEAD + b"Content-Length: 10\r\n\r\n"
    status, body = asked(port, head + b"12345")
    assert (status, code(body)) == (408, "request_timeout")
    status, body = asked(port, head + b"12345", b"67", b"8", b"90", pause_s=0.3)
    assert (status, body) == (200, b"10")
    status, body = asked(port, b"POST / HTTP/1.1\r\n" + HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\n123")
    assert status == 408


def test_answers_that_take_long_are_not_limited(port: int) -> None:
    assert asked(port, b"GET /wait HTTP/1.1\r\nConnection: close\r\n" + HEAD + b"\r\n") == (200, b"waited")
    status, body = asked(port, b"GET /stream HTTP/1.1\r\nConnection: close\r\n" + HEAD + b"\r\n")
    assert (status, body.count(b"part")) == (200, 4)


def test_so_many_connections_and_no_more(port: int) -> None:
    time.sleep(1.5)  # those of other tests have ended
    held = [connected(port) for _ in range(MOST)]
    try:
        with connected(port) as raw:
            raw.sendall(b"GET / HTTP/1.1\r\n" + HEAD + b"\r\n")
            answer = b""
            while block := raw.recv(1 << 16):
                answer += block
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: " in head.lower()
        assert code(body) == "too_many_connections"
    finally:
        for raw in held:
            raw.close()
    time.sleep(1.0)
    assert asked(port, b"GET / HTTP/1.1\r\nConnection: close\r\n" + HEAD + b"\r\n") == (200, b"0")


SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.mark.parametrize(
    "request_text",
    [
        b"POST / HTTP/1.1\r\n" + HEAD + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
        b"POST / HTTP/1.1\r\n" + HEAD + b"Transfer-Encoding: chunked\r\ncontent-length: 4\r\n\r\n0\r\n\r\n" + SMUGGLED,
        b"POST / HTTP/1.0\r\n" + HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
        b"GET / HTTP/1.1\n" + HEAD + b"\r\n" + SMUGGLED,
        b"GET / HTTP/1.1\r\nHost: x\n\r\n" + SMUGGLED,
        b"GET / HTTP/1.1\r\nHost: x\r\n\n" + SMUGGLED,
        b"\nGET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nX: a\rb\r\n\r\n",
        b"POST / HTTP/1.1\r\n" + HEAD + b"Content-Length: 4\r\nContent-Length: 5\r\n\r\n" + SMUGGLED,
        b"POST / HTTP/1.1\r\n" + HEAD + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n",
    ],
)
def test_what_could_be_read_in_two_ways_is_refused(port: int, request_text: bytes) -> None:
    status, body = asked(port, request_text)
    assert (status, code(body)) == (400, "malformed")  # one answer and nothing after it


def test_a_head_request_that_is_ambiguous_gets_no_body(port: int) -> None:
    text = b"HEAD / HTTP/1.1\r\n" + HEAD + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    assert asked(port, text) == (400, b"")


@pytest.mark.parametrize("pieces", [1, 3])
def test_heads_have_a_size(port: int, pieces: int) -> None:
    text = b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n" + HEAD + b"\r\n"
    cut = len(text) // pieces + 1
    status, body = asked(port, *(text[at : at + cut] for at in range(0, len(text), cut)), pause_s=0.05)
    assert (status, code(body)) == (431, "headers_too_large")


def test_plain_requests_follow_each_other(port: int) -> None:
    one = b"POST / HTTP/1.1\r\n" + HEAD + b"Content-Length: 3\r\n\r\na\nb"
    with connected(port) as raw:
        raw.sendall(one * 3)
        answer = b""
        while answer.count(b"HTTP/1.1 200") < 3:
            answer += raw.recv(1 << 16)
