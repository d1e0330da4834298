"""Blobs in a folder and in a bucket behave alike."""

import io
from pathlib import Path

import fsspec
import pytest

from llm4llm.errors import BadSettings
from llm4llm.kit import sha256_bytes
from llm4llm.store import BlobDamaged
from llm4llm.store.blobs import BlobFolder, Blobs, open_blobs

CONTENT = bytes(range(256)) * 9000


@pytest.fixture(params=["folder", "file", "local", "memory"])
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> Blobs:
    if request.param == "folder":
        return open_blobs(tmp_path / "blobs")
    if request.param == "memory":
        fsspec.filesystem("memory").store.clear()
        return open_blobs("memory://bucket/prefix")
    return open_blobs(f"{request.param}://{tmp_path}/blobs")


def test_content_comes_back_and_is_kept_once(blobs: Blobs) -> None:
    sha256 = blobs.put(CONTENT)
    assert sha256 == sha256_bytes(CONTENT) == blobs.put(CONTENT) == blobs.put_file(io.BytesIO(CONTENT))
    assert blobs.get(sha256) == blobs.path(sha256).read_bytes() == CONTENT
    assert blobs.put_file(io.BytesIO(b"")) == sha256_bytes(b"")


def test_what_is_not_there(blobs: Blobs) -> None:
    with pytest.raises(BlobDamaged):
        blobs.get("0" * 64)
    with pytest.raises(BlobDamaged):
        blobs.path("0" * 64)
    for wrong in ("../../etc/passwd", "0" * 63, "G" * 64):
        with pytest.raises(ValueError):
            blobs.path(wrong)


def test_no_draft_is_left(blobs: Blobs, tmp_path: Path) -> None:
    blobs.put_file(io.BytesIO(CONTENT))

    class Breaks(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            if self.tell() > 0:
                raise OSError(5, "broken")
            return super().read(1000)

    with pytest.raises(Exception, match="broken"):
        blobs.put_file(Breaks(CONTENT))
    found = [path.name for path in tmp_path.rglob("*") if path.is_file()] + [str(path) for path in fsspec.filesystem("memory").store]
    assert not [name for name in found if "part" in name]


def test_a_bucket_is_read_by_other_machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLM4LLM_HOME", str(tmp_path / "one"))
    sha256 = open_blobs(f"local://{tmp_path}/bucket").put(CONTENT)
    monkeypatch.setenv("LLM4LLM_HOME", str(tmp_path / "two"))
    other = open_blobs(f"local://{tmp_path}/bucket")
    assert other.get(sha256) == CONTENT
    (stored,) = [path for path in (tmp_path / "bucket").rglob("*") if path.is_file()]
    stored.write_bytes(b"damaged")
    assert other.get(sha256) == CONTENT
    monkeypatch.setenv("LLM4LLM_HOME", str(tmp_path / "three"))
    third = open_blobs(f"local://{tmp_path}/bucket")
    with pytest.raises(BlobDamaged):
        third.get(sha256)
    assert third.put(CONTENT) == sha256
    assert stored.read_bytes() == CONTENT


def test_urls_that_lead_nowhere(tmp_path: Path) -> None:
    with pytest.raises(BadSettings, match="LLM4LLM_BLOB_ROOT"):
        open_blobs("no-such-protocol://bucket")
    assert isinstance(open_blobs(f"file://{tmp_path}"), BlobFolder)
