"""What can't be served is refused in the one shape, and leaves nothing behind."""

import io
import json
import socket
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from serving import Service

SCRIPT = ("infer.py", b"print(1)\n")
CUT_OFF = b'--b\r\nContent-Disposition: form-data; name="script"; filename="s.py"\r\n\r\nprint(1)\n'


@pytest.fixture(autouse=True)
def nothing_stored(service: Service) -> Iterator[None]:
    """Neither rows nor files may remain of what was refused."""

    def all_files() -> set[Path]:
        return {path for path in (service.home / "blobs").rglob("*") if path.is_file()}

    def jobs() -> list[Any]:
        return list(httpx.get(f"{service.url}/v1/jobs").json()["jobs"])

    before = all_files(), jobs()
    yield
    assert (all_files(), jobs()) == before


def refused(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    problem = dict(answer.json())
    assert (problem["status"], problem["code"]) == (status, code)
    assert problem["type"] == f"urn:llm4llm:problem:{code}"
    assert problem["title"]
    assert problem["detail"]
    return problem


def post(service: Service, **how: Any) -> httpx.Response:
    return httpx.post(f"{service.url}/v1/jobs", timeout=60, **how)


def with_script(service: Service, content: bytes = SCRIPT[1], **fields: str) -> httpx.Response:
    return post(service, files={"script": ("infer.py", content)}, data=fields)


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"budget": "-5"}, "budget"),
        ({"budget": "0"}, "budget"),
        ({"budget": "nan"}, "budget"),
        ({"budget": "9" * 500}, "budget"),
        ({"budget": "soon"}, "budget"),
        ({"min_gain": "0.5"}, "min_gain"),
        ({"objective": "fame"}, "objective"),
        ({"network": "perhaps"}, "network"),
        ({"args": "not json"}, "args"),
        ({"args": "[1]"}, "args"),
        ({"args": "[" * 5000}, "args"),
        ({"args": '["a\\u0000b"]'}, "args"),
        ({"args": json.dumps(["x"] * 1001)}, "args"),
        ({"args": json.dumps(["x" * 90_000] * 8)}, "args"),
        ({"environment": '["OMP_NUM_THREADS"]'}, "environment"),
        ({"environment": '{"OMP_NUM_THREADS": 2}'}, "environment"),
        ({"colour": "red"}, "colour"),
        ({"files": "text"}, "files"),
        ({"target": ""}, "target"),
    ],
)
def test_fields_that_mean_nothing(service: Service, fields: dict[str, str], where: str) -> None:
    problem = refused(with_script(service, **fields), 422, "invalid_request")
    assert problem["errors"][0]["where"].startswith(where)


def test_every_fault_is_told_at_once(service: Service) -> None:
    fields = {"colour": "red", "budget": "-5", "args": "x", "environment": "[]", "min_gain": "0.1"}
    problem = refused(with_script(service, **fields), 422, "invalid_request")
    assert {fault["where"].split(".")[0] for fault in problem["errors"]} == set(fields)
    problem = refused(post(service, files={"files": ("a", b"")}, data={"budget": "0"}), 422, "invalid_request")
    assert {fault["where"] for fault in problem["errors"]} == {"script", "budget"}
    text = {"colour": 1, "budget": -5, "args": [1], "min_gain": 0}
    problem = refused(post(service, json=text), 422, "invalid_request")
    assert {fault["where"].split(".")[0] for fault in problem["errors"]} == {"script", *text}


@pytest.mark.parametrize(
    ("fields", "status", "code"),
    [
        ({"target": "abacus"}, 422, "unknown_target"),
        ({"target": "../profiles/cpu"}, 422, "unknown_target"),
        ({"agent": "oracle"}, 422, "unknown_agent"),
        ({"network": "true"}, 403, "network_not_allowed"),
        ({"environment": '{"OPENAI_API_KEY": "x"}'}, 422, "environment_not_allowed"),
        ({"environment": '{"LD_PRELOAD": "x"}'}, 422, "environment_not_allowed"),
        ({"environment": '{"LD_LIBRARY_PATH": "."}'}, 422, "environment_not_allowed"),
        ({"environment": '{"LLM4LLM_HOME": "x"}'}, 422, "environment_not_allowed"),
    ],
)
def test_what_is_not_offered(service: Service, fields: dict[str, str], status: int, code: str) -> None:
    refused(with_script(service, **fields), status, code)


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "script_empty"),
        (b"# nothing\n", "script_empty"),
        (b"def f(:\n", "script_not_python"),
        (b"x = " + b"(" * 3000 + b")" * 3000, "script_not_python"),
        (b"\xff\xfe\x00print", "script_unreadable"),
        (b"x = 1\0\n", "script_unreadable"),
    ],
)
def test_scripts_that_are_none(service: Service, content: bytes, code: str) -> None:
    refused(with_script(service, content), 422, code)


def test_a_script_that_is_too_large(service: Service) -> None:
    for answer in (with_script(service, b"x\n" * (2 << 20)), post(service, json={"script": "x\n" * (2 << 20)})):
        assert "1 MiB" in refused(answer, 413, "too_large")["detail"]


@pytest.mark.parametrize(
    "name",
    ["../escape.py", "/etc/passwd", "a/../../b", "C:x.py", "a\\..\\b", "nul\0byte.py", "a//b", "a/./b", "x" * 300, " a ", "new\nline"],
)
@pytest.mark.parametrize("field", ["script", "files"])
def test_file_names_that_leave_the_folder(service: Service, name: str, field: str) -> None:
    # written by hand: clients escape such names
    quoted = name.replace('"', "%22").encode()
    parts = [("script", b"infer.py")] if field == "files" else []
    parts.append((field, quoted))
    body = b"".join(
        b'--b\r\nContent-Disposition: form-data; name="%s"; filename="%s"\r\n\r\nprint(1)\n\r\n' % (part.encode(), file)
        for part, file in parts
    )
    answer = post(service, content=body + b"--b--\r\n", headers={"Content-Type": "multipart/form-data; boundary=b"})
    assert answer.status_code in (400, 422), answer.text
    refused(answer, answer.status_code, "bad_upload" if answer.status_code == 400 else "bad_file_name")


def test_files_at_one_place(service: Service) -> None:
    for other in ("infer.py", "infer.py/x"):
        refused(post(service, files=[("script", SCRIPT), ("files", (other, b"x"))]), 422, "bad_file_name")
    refused(post(service, files=[("script", SCRIPT), ("script", SCRIPT)]), 422, "invalid_request")
    refused(post(service, files=[("files", SCRIPT)]), 422, "invalid_request")


@pytest.mark.parametrize(
    ("content", "kind", "status", "code"),
    [
        (b"print(1)", "text/x-python", 415, "unsupported_media_type"),
        (b"print(1)", None, 415, "unsupported_media_type"),
        (b"script=1", "application/x-www-form-urlencoded", 415, "unsupported_media_type"),
        (b"hello", "multipart/form-data", 400, "bad_upload"),
        (b"hello", "multipart/form-data; boundary=b", 400, "bad_upload"),
        (b"", "multipart/form-data; boundary=b", 400, "bad_upload"),
        (CUT_OFF, "multipart/form-data; boundary=b", 400, "bad_upload"),
        (b"--b\r\n\r\nx\r\n--b--\r\n", "multipart/form-data; boundary=b", 400, "bad_upload"),
        (b"{", "application/json", 422, "invalid_request"),
        (b"[]", "application/json", 422, "invalid_request"),
        (b"[" * 100_000, "application/json", 422, "invalid_request"),
        (b'{"script": "print(1)", "colour": 1}', "application/json", 422, "invalid_request"),
        (b'{"script": 5}', "application/json", 422, "invalid_request"),
        (b'{"script": "print(1)", "budget": true}', "application/json", 422, "invalid_request"),
        (b'{"script": "print(1)", "budget": 1e999}', "application/json", 422, "invalid_request"),
        (b'{"script": "x = \\ud800"}', "application/json", 422, "invalid_request"),
        (b'{"script": "print(1)", "files": [{"path": "../x", "text": ""}]}', "application/json", 422, "bad_file_name"),
    ],
)  # fmt: skip
def test_bodies_that_are_not_what_they_say(service: Service, content: bytes, kind: str | None, status: int, code: str) -> None:
    refused(post(service, content=content, headers={"Content-Type": kind} if kind else {}), status, code)


def zipped(members: dict[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


def link() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        info = zipfile.ZipInfo("link")
        info.external_attr = 0o120777 << 16
        archive.writestr(info, "/etc/passwd")
    return file.getvalue()


def lying() -> bytes:
    """Says that it unpacks to 10 bytes, and unpacks to many more."""
    content = bytearray(zipped({"a": b"0" * 5000}))
    at = content.rfind(b"PK\x01\x02") + 24
    content[at : at + 4] = struct.pack("<I", 10)
    return bytes(content)


def encrypted() -> bytes:
    content = bytearray(zipped({"a": b"secret"}))
    for mark, offset in ((b"PK\x01\x02", 8), (b"PK\x03\x04", 6)):
        content[content.rfind(mark) + offset] |= 1
    return bytes(content)


def huge_directory() -> bytes:
    content = bytearray(zipped({"a": b"x"}))
    at = content.rfind(b"PK\x05\x06")
    content[at + 12 : at + 16] = struct.pack("<I", 50 << 20)
    return bytes(content)


@pytest.mark.parametrize(
    ("archive", "status", "code"),
    [
        (b"no zip", 422, "bad_archive"),
        (b"", 422, "bad_archive"),
        (zipped({"../x": b"1"}), 422, "bad_file_name"),
        (zipped({"/x": b"1"}), 422, "bad_file_name"),
        (zipped({"a": b"1"}).replace(b"a", b"\0"), 422, "bad_file_name"),
        (zipped({"infer.py": b"1"}), 422, "bad_file_name"),
        (zipped({"bomb": bytes(20 << 20)}), 422, "bad_archive"),
        (zipped({str(number): b"" for number in range(1001)}), 422, "bad_archive"),
        (zipped({str(number): b"" for number in range(2500)}), 422, "bad_archive"),
        (zipped({"a": b"x" * 100}, zipfile.ZIP_LZMA), 422, "bad_archive"),
        (zipped({"a": b"x" * 1000})[:-60], 422, "bad_archive"),
        (link(), 422, "bad_archive"),
        (lying(), 422, "bad_archive"),
        (encrypted(), 422, "bad_archive"),
        (huge_directory(), 422, "bad_archive"),
    ],
)
def test_archives_that_could_harm(service: Service, archive: bytes, status: int, code: str) -> None:
    refused(post(service, files=[("script", SCRIPT), ("archive", ("files.zip", archive))]), status, code)


def test_a_body_that_is_too_large(service: Service) -> None:
    refused(post(service, files=[("script", SCRIPT), ("files", ("big", bytes(66 << 20)))]), 413, "too_large")
    refused(post(service, content=b'{"script": "' + b"x" * (17 << 20), headers={"Content-Type": "application/json"}), 413, "too_large")

    def endless() -> Iterator[bytes]:
        for _ in range(70):
            yield bytes(1 << 20)

    head = b'--b\r\nContent-Disposition: form-data; name="script"; filename="s.py"\r\n\r\n'
    answer = post(
        service,
        content=(block for part in ([head], endless()) for block in part),
        headers={"Content-Type": "multipart/form-data; boundary=b"},
    )
    refused(answer, 413, "too_large")


def test_a_body_that_breaks_off(service: Service) -> None:
    head = b"POST /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: multipart/form-data; boundary=b\r\nContent-Length: 100000\r\n\r\n"
    with connected(service) as raw:
        raw.sendall(head + b'--b\r\nContent-Disposition: form-data; name="script"; filename="s.py"\r\n\r\nprint(1)')


def connected(service: Service) -> socket.socket:
    parts = urlsplit(service.url)
    assert parts.hostname is not None
    assert parts.port is not None
    return socket.create_connection((parts.hostname, parts.port), timeout=20)


@pytest.mark.parametrize(
    ("request_text", "status", "code"),
    [
        (
            b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            + b"".join(b"X-%d: y\r\n" % number for number in range(10_000))
            + b"Connection: close\r\n\r\n",
            431,
            "headers_too_large",
        ),
        (b"GET /" + b"x" * 200_000 + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 431, "headers_too_large"),
        (b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n" + b"X: y\r\n" * 300 + b"Connection: close\r\n\r\n", 431, "headers_too_large"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400, "malformed"),
        (b"GET /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nX: a\0b\r\n\r\n", 400, "malformed"),
        (b"GET /v1/jobs HTTP/1.1\r\n\r\n", 400, "malformed"),
    ],
)
def test_what_is_no_request(service: Service, request_text: bytes, status: int, code: str) -> None:
    with connected(service) as raw:
        raw.sendall(request_text)
        answer = b""
        while block := raw.recv(1 << 16):
            answer += block
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert b"application/problem+json" in head
    assert json.loads(body)["code"] == code


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nowhere", 404, "not_found"),
        ("GET", "/v1/jobs/", 404, "not_found"),
        ("PUT", "/v1/jobs", 405, "method_not_allowed"),
        ("TRACE", "/healthz", 405, "method_not_allowed"),
        ("GET", "/v1/jobs/job_0", 404, "unknown_job"),
        ("GET", "/v1/jobs/%00", 404, "unknown_job"),
        ("GET", "/v1/jobs/%ff%fe", 404, "unknown_job"),
        ("GET", "/v1/jobs/..%2f..%2fetc", 404, "not_found"),
        ("GET", "/v1/jobs/" + "x" * 65, 422, "invalid_request"),
        ("GET", "/v1/jobs?limit=0", 422, "invalid_request"),
        ("GET", "/v1/jobs?status=odd", 422, "invalid_request"),
        ("GET", "/v1/jobs?cursor=%00%00", 422, "invalid_request"),
        ("GET", "/v1/jobs?cursor=MTIz", 422, "invalid_request"),
        ("GET", "/v1/jobs/job_0?wait=61", 422, "invalid_request"),
        ("GET", "/v1/jobs/job_0?wait=nan", 422, "invalid_request"),
        ("POST", "/v1/jobs/job_0/cancel", 404, "unknown_job"),
        ("DELETE", "/v1/jobs/job_0", 404, "unknown_job"),
        ("GET", "/v1/jobs/job_0/bundle", 404, "unknown_job"),
        ("GET", "/v1/jobs/job_0/logs?stream=all", 422, "invalid_request"),
    ],
)
def test_addresses_that_lead_nowhere(service: Service, method: str, path: str, status: int, code: str) -> None:
    answer = httpx.request(method, service.url + path)
    refused(answer, status, code)
    assert (status == 405) == ("allow" in answer.headers)


def test_odd_headers(service: Service) -> None:
    url = f"{service.url}/v1/jobs"
    refused(httpx.post(url, files={"script": SCRIPT}, headers={"Idempotency-Key": "x" * 256}), 422, "invalid_request")
    refused(httpx.post(url, files={"script": SCRIPT}, headers={"Idempotency-Key": "a b"}), 422, "invalid_request")
    refused(httpx.get(f"{url}/job_0/events", headers={"Last-Event-ID": "-1"}), 422, "invalid_request")
    refused(httpx.get(f"{url}/job_0/events", headers={"Last-Event-ID": "9" * 30}), 422, "invalid_request")


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "rebound.example"},
        {"Host": "127.0.0.1.evil.example:80"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
    ],
)
def test_a_web_page_can_not_use_a_server_without_keys(service: Service, headers: dict[str, str]) -> None:
    refused(post(service, files={"script": SCRIPT}, headers=headers), 403, "cross_origin")
