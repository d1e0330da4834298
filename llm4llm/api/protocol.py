"""HTTP/1.1 as uvicorn speaks it, but stricter, and with an end to everything that a client may leave half done.

What can't be parsed, is ambiguous or does not come is refused in the one shape of errors, and so that the client sees it.
"""

import asyncio
import re
from http import HTTPStatus
from typing import Any, Literal

import h11
from starlette.responses import Response
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from llm4llm.api.problems import HeadersTooLarge, RequestTimeout, TooManyConnections, of_error, problem

HEAD_S = 20.0  # from its first byte, or from the connection's beginning
IDLE_BODY_S = 60.0  # between two bytes
_LINGER_S = 2.0
_MOST_REFUSED = 100  # connections that are told that there are too many; those beyond are just closed
_MAX_HEAD_BYTES = 64 << 10  # request line and headers
_HEAD_END = re.compile(rb"\n\r?\n")
_LONE_LINE_FEED = re.compile(rb"(?<!\r)\n")
_MAY_ANSWER = (h11.IDLE, h11.SEND_RESPONSE)


class _Strict(h11.Connection):
    """Refuses what a proxy in front may read in another way than we do (RFC 9112, sections 2.2, 6.1 and 6.3)."""

    def __init__(self) -> None:
        super().__init__(h11.SERVER, _MAX_HEAD_BYTES)
        self.head_too_long = False
        self.without_body = False  # the answer to a HEAD has none

    def next_event(self) -> Any:
        if self.their_state is h11.IDLE:
            self._check_head()
        event = super().next_event()
        if isinstance(event, h11.Request):
            self.without_body = event.method == b"HEAD"
            names = {name.lower() for name, _ in event.headers}
            if b"transfer-encoding" in names and (b"content-length" in names or event.http_version < b"1.1"):
                raise h11.RemoteProtocolError("the length of the body is ambiguous")
        return event

    def _check_head(self) -> None:
        waiting = self.trailing_data[0]
        end = _HEAD_END.search(waiting)
        head = waiting if end is None else waiting[: end.end()]
        if len(head) > _MAX_HEAD_BYTES:
            self.head_too_long = True
            raise h11.RemoteProtocolError("the head is too long", error_status_hint=431)
        if _LONE_LINE_FEED.search(head):
            raise h11.RemoteProtocolError("a line does not end in CR LF")


class Protocol(H11Protocol):
    """Reads on for a while after a refusal: closing while the client still sends would reset the connection, and our answer with it.

    Answers that take long (long polls, streams) are not limited: the clock runs only while the client owes us something.
    """

    conn: _Strict

    def __init__(
        self, config: Config, server_state: ServerState, app_state: dict[str, Any], _loop: asyncio.AbstractEventLoop | None = None
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.conn = _Strict()
        self._most, self.limit_concurrency = self.limit_concurrency, None  # uvicorn's own answer is no problem document
        self._refused = False
        self._owed: Literal["head", "body"] | None = None
        self._clock: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        beyond = len(self.connections) - self._most if self._most is not None else 0
        if beyond > _MOST_REFUSED:
            self._refused = True
            transport.abort()
        elif beyond > 0:
            self._refuse(of_error(TooManyConnections()))
        else:
            self._start_clock("head")

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_clock()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        super().data_received(data)
        self._look_what_is_owed()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._look_what_is_owed()

    def send_400_response(self, msg: str) -> None:
        if self.conn.head_too_long:
            self._refuse(of_error(HeadersTooLarge(f"the headers have more than {_MAX_HEAD_BYTES} bytes")))
        else:
            self._refuse(problem(400, "malformed", "this is not a valid HTTP request", "send plain HTTP/1.1"))

    def _look_what_is_owed(self) -> None:
        if self._refused or self.transport.is_closing():
            self._stop_clock()
        elif self.conn.their_state is h11.SEND_BODY:
            if self._owed != "body" or self.conn.our_state is not h11.DONE:  # nobody waits for the rest of a body that was answered
                self._start_clock("body")
        elif self.conn.their_state is not h11.IDLE or not self.conn.trailing_data[0]:
            self._stop_clock()
        elif self._owed != "head":
            self._start_clock("head")

    def _start_clock(self, owed: Literal["head", "body"]) -> None:
        self._stop_clock()
        self._owed = owed
        self._clock = self.loop.call_later(HEAD_S if owed == "head" else IDLE_BODY_S, self._time_is_up)

    def _stop_clock(self) -> None:
        self._owed = None
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None

    def _time_is_up(self) -> None:
        if self._owed == "body":
            not_theirs = self.flow.read_paused or self.cycle.waiting_for_100_continue or self.conn.our_state is h11.SEND_BODY
            if not_theirs:
                self._start_clock("body")
            elif self.conn.our_state in _MAY_ANSWER:
                self._refuse(of_error(RequestTimeout(f"no byte of the body came for {IDLE_BODY_S:.0f} s")))
            else:
                self.transport.close()
        elif self.conn.trailing_data[0]:
            self._refuse(of_error(RequestTimeout(f"the headers had not come after {HEAD_S:.0f} s")))
        else:
            self.transport.close()

    def _refuse(self, answer: Response) -> None:
        """Answer in the app's place, if it has not begun to, and end the connection."""
        self._refused = True
        self._stop_clock()
        self._unset_keepalive_if_required()
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state not in _MAY_ANSWER:
            self.transport.close()
            return
        status = HTTPStatus(answer.status_code)
        headers = [*answer.raw_headers, (b"connection", b"close")]
        body = [] if self.conn.without_body else [h11.Data(data=bytes(answer.body))]
        for event in (h11.Response(status_code=status, headers=headers, reason=status.phrase.encode()), *body, h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(_LINGER_S, self.transport.close)
