"""HTTP/1.1 as uvicorn speaks it, but what can't be parsed is refused in the one shape of errors, and so that the client sees it."""

from http import HTTPStatus

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from llm4llm.api.problems import HeadersTooLarge, of_error, problem

_LINGER_S = 2.0
_MAX_HEAD_BYTES = 64 << 10  # request line and headers


class Protocol(H11Protocol):
    """Reads on for a while after a refusal: closing while the client still sends would reset the connection, and our answer with it."""

    _refused = False

    def data_received(self, data: bytes) -> None:
        if not self._refused:
            super().data_received(data)

    def send_400_response(self, msg: str) -> None:
        self._refused = True
        if len(self.conn.trailing_data[0]) >= _MAX_HEAD_BYTES:
            answer = of_error(HeadersTooLarge(f"the headers have more than {_MAX_HEAD_BYTES} bytes"))
        else:
            answer = problem(400, "malformed", "this is not a valid HTTP request", "send plain HTTP/1.1")
        status = HTTPStatus(answer.status_code)
        headers = [*answer.raw_headers, (b"connection", b"close")]
        for event in (
            h11.Response(status_code=status, headers=headers, reason=status.phrase.encode()),
            h11.Data(data=bytes(answer.body)),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(_LINGER_S, self.transport.close)
