"""Bodies of submissions, read in pieces and never further than their limit."""

import asyncio
import contextlib
import io
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, BinaryIO

from pydantic import TypeAdapter, ValidationError
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request

from llm4llm.api.problems import FAULTS_SHOWN, InvalidRequest, UnsupportedMediaType, faults_of
from llm4llm.errors import BadUpload, TooLarge
from llm4llm.schema.submission import JsonSubmission, Options
from llm4llm.service.archive import Part
from llm4llm.service.intake import MAX_FILES, Upload

MAX_JSON_BYTES = 16 << 20  # held in memory
_MAX_FIELD_BYTES = 1 << 20
_MAX_FIELDS = 32
_DRAINED_BYTES = 64 << 20
_DRAINING_S = 5.0
_ARGS: TypeAdapter[list[str]] = TypeAdapter(list[str])
_ENVIRONMENT: TypeAdapter[dict[str, str]] = TypeAdapter(dict[str, str])
_TEXT_FIELDS = frozenset(Options.model_fields)
_FILE_FIELDS = frozenset({"script", "files", "archive"})


@asynccontextmanager
async def submission(request: Request, limit: int, idempotency_key: str | None) -> AsyncIterator[Upload]:
    """What was handed in, its files open inside the block.

    TooLarge, UnsupportedMediaType, BadUpload or InvalidRequest.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/json":
        yield _from_json(await _whole(request, min(limit, MAX_JSON_BYTES)), idempotency_key)
        return
    if kind != "multipart/form-data":
        raise UnsupportedMediaType(kind)
    form = await _form(request, limit)
    try:
        yield _from_form(form, idempotency_key)
    finally:
        await form.close()


async def _whole(request: Request, limit: int) -> bytes:
    return b"".join([block async for block in _limited(request, limit)])


async def _limited(request: Request, limit: int) -> AsyncGenerator[bytes, None]:
    """The body's blocks; TooLarge as soon as there are more bytes than that, or as many are announced."""
    announced = request.headers.get("content-length", "")
    stream = request.stream()
    found = 0
    try:
        if announced.isdecimal() and len(announced) < 20 and int(announced) > limit:
            raise _too_large(limit)
        async for block in stream:
            found += len(block)
            if found > limit:
                raise _too_large(limit)
            yield block
    except TooLarge:
        # a client that still sends would not read our answer, but see its connection break
        with contextlib.suppress(TimeoutError, ClientDisconnect):
            async with asyncio.timeout(_DRAINING_S):
                async for block in stream:
                    found += len(block)
                    if found > limit + _DRAINED_BYTES:
                        break
        raise
    except ClientDisconnect as error:
        raise BadUpload("the body ended before its end", "send it again") from error


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"the body is larger than {limit} bytes", "leave out what the script does not need")


class _Parser(MultiPartParser):
    """Knows whether the closing boundary was seen: a body that was cut off must not pass as a smaller one."""

    ended = False

    def on_end(self) -> None:
        self.ended = True


async def _form(request: Request, limit: int) -> FormData:
    parser = _Parser(
        request.headers, _limited(request, limit), max_files=MAX_FILES + 2, max_fields=_MAX_FIELDS, max_part_size=_MAX_FIELD_BYTES
    )
    try:
        form = await parser.parse()
    except MultiPartException as error:
        raise BadUpload(f"the multipart body can't be read ({error.message})", "send it as curl -F does") from error
    except (ValueError, KeyError, UnicodeError, LookupError) as error:
        raise BadUpload("the multipart body can't be read", "send it as curl -F does") from error
    if not parser.ended:
        await form.close()
        raise BadUpload("the multipart body ends before its closing boundary", "send it again, whole")
    return form


def _from_form(form: FormData, idempotency_key: str | None) -> Upload:
    texts: dict[str, Any] = {}
    files: dict[str, list[UploadFile]] = {name: [] for name in _FILE_FIELDS}
    faults = []
    for name, value in form.multi_items():
        if isinstance(value, UploadFile) and name in _FILE_FIELDS:
            files[name].append(value)
        elif isinstance(value, str) and name in _TEXT_FIELDS and name not in texts:
            texts[name] = value
        else:
            faults.append({"where": name[:60], "what": _misplaced(name, value, name in texts)})
    for name in ("script", "archive"):
        if len(files[name]) > 1:
            faults.append({"where": name, "what": "only one file may be given"})
    if not files["script"]:
        faults.append({"where": "script", "what": "the script is missing; send it as a file"})
    options = _options(texts, faults)
    if options is None or faults:
        raise InvalidRequest(faults[:FAULTS_SHOWN])
    return Upload(
        script=_part(files["script"][0]),
        options=options,
        files=tuple(_part(file) for file in files["files"]),
        archive=files["archive"][0].file if files["archive"] else None,
        idempotency_key=idempotency_key,
    )


def _misplaced(name: str, value: object, twice: bool) -> str:
    if twice:
        return "was given twice"
    if name in _FILE_FIELDS:
        return "has to be a file, with a file name"
    return "has to be text, without a file name" if name in _TEXT_FIELDS and isinstance(value, UploadFile) else "there is no such field"


def _options(texts: dict[str, Any], faults: list[dict[str, str]]) -> Options | None:
    """Options from form fields: lists and objects are JSON, everything else is plain text. All that is wrong is added to `faults`."""
    readers: dict[str, TypeAdapter[Any]] = {"args": _ARGS, "environment": _ENVIRONMENT}
    for name, reader in readers.items():
        if name in texts:
            try:
                texts[name] = reader.validate_json(texts[name])
            except ValidationError as error:
                faults.append({"where": name, "what": f"has to be JSON: {error.errors()[0]['msg']}"[:300]})
                del texts[name]
    try:
        return Options.model_validate(texts)
    except ValidationError as error:
        faults.extend(faults_of(error))
        return None


def _from_json(body: bytes, idempotency_key: str | None) -> Upload:
    try:
        facts = JsonSubmission.model_validate_json(body)
    except ValidationError as error:
        raise InvalidRequest(faults_of(error)) from error
    options = Options.model_validate({name: getattr(facts, name) for name in Options.model_fields})
    files = tuple(_text_part(file.path, file.text) for file in facts.files)
    return Upload(_text_part(facts.script_name, facts.script), options, files, None, idempotency_key)


def _part(upload: UploadFile) -> Part:
    def opened() -> BinaryIO:
        upload.file.seek(0)
        return upload.file

    return Part(upload.filename or "", opened)


def _text_part(path: str, text: str) -> Part:
    content = text.encode()
    return Part(path, lambda: io.BytesIO(content))
