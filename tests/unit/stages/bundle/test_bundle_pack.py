import io
import json
import stat
import zipfile
from pathlib import Path

import pytest
from bundle_contents import CANDIDATE, contents

import llm4llm
from llm4llm.errors import BadBundle
from llm4llm.runtime.loader import Refused, read_files, verified
from llm4llm.stages.bundle.contents import manifest_of
from llm4llm.stages.bundle.inspect import inspect, verify
from llm4llm.stages.bundle.manifest import Manifest
from llm4llm.stages.bundle.pack import RUNTIME_MODULES, archived, bundle_files, pack

GOLDEN = Path(__file__).parents[3] / "golden" / "manifest_v1.json"


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    path = tmp_path / "bundle.zip"
    path.write_bytes(pack(contents()))
    return path


def rewritten(path: Path, change: dict[str, bytes | None]) -> Path:
    """The same archive with files replaced, added, or (None) left out."""
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    files = {name: content for name, content in {**files, **change}.items() if content is not None}
    path.write_bytes(archived(files))
    return path


def test_equal_contents_give_equal_bytes() -> None:
    assert pack(contents()) == pack(contents())


def test_a_fresh_bundle_is_whole_packed_and_unpacked(bundle: Path, tmp_path: Path) -> None:
    assert verify(bundle) == []
    folder = tmp_path / "unpacked"
    zipfile.ZipFile(bundle).extractall(folder)
    assert verify(folder) == []
    assert inspect(bundle) == inspect(folder)


def test_manifest_v1_is_as_written_down(bundle: Path) -> None:
    manifest = inspect(bundle)
    Manifest.model_validate(manifest)
    # hashes of carried files change with every edit of the runtime; which files there are does not
    manifest["files"] = sorted(name for name in manifest["files"] if "/runtime/" not in name)
    manifest["made_by"]["version"] = "VERSION"
    assert llm4llm.__version__ not in json.dumps(manifest)
    assert manifest == json.loads(GOLDEN.read_text())


def test_a_candidate_that_nobody_can_read_is_packed_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bundle_contents.CANDIDATE", b"x = a" + b".b" * 100_000)
    (patch,) = manifest_of(contents())["patches"]
    assert (patch["hypothesis"], patch["needs_triton"]) == ("", False)


def test_everything_that_the_carried_runtime_imports_is_carried() -> None:
    folder = Path(llm4llm.__file__).parent / "runtime"
    assert {file.stem for file in folder.glob("*.py")} == {*RUNTIME_MODULES, "loader"}
    order = {name: at for at, name in enumerate(RUNTIME_MODULES)}
    for name in RUNTIME_MODULES:
        for line in (folder / f"{name}.py").read_text().splitlines():
            if line.startswith("from ."):
                assert order[line.split()[1].removeprefix(".")] < order[name], f"{name}: {line}"


def test_guards_and_evidence_are_told_in_words(bundle: Path) -> None:
    patch = inspect(bundle)["patches"][0]
    assert patch["guards"] == [
        "no gradients needed, eval mode, no inference_mode; argument 0 a float32 tensor on cpu of 2 x 1..9, cache a Cache (empty); "
        "anything else runs the original"
    ]
    assert patch["evidence"]["in_model"]["hits"] == {"cand_1": 4}
    assert patch["hypothesis"] == "Doubles the scale in one pass."
    readme = bundle_files(contents())["README.md"].decode()
    assert "2.000x end to end, 95 % interval 1.900 to 2.100 (3 pairs)" in readme
    assert "llm4llm_bundle.remove(model)" in readme


def test_triton_is_needed_where_a_candidate_imports_it() -> None:
    from llm4llm.kit import sha256_bytes
    from llm4llm.stages.bundle.contents import manifest_of

    source = b"import triton.language as tl\n\ndef forward(module, state, x): ...\n"
    acceptance = contents().acceptance
    patch = acceptance.kept[0].model_copy(update={"candidate_sha256": sha256_bytes(source)})
    one = contents(acceptance=acceptance.model_copy(update={"kept": (patch,)}), candidates={sha256_bytes(source): source})
    assert manifest_of(one)["patches"][0]["needs_triton"] is True
    assert manifest_of(contents())["patches"][0]["needs_triton"] is False


def test_changed_missing_and_added_files_are_named_and_never_run(bundle: Path) -> None:
    file = next(name for name in inspect(bundle)["files"] if name.startswith("patches/"))
    cases: list[tuple[dict[str, bytes | None], str]] = [
        ({file: CANDIDATE + b"#"}, f"{file} was altered: its sha256 is not the one in the manifest"),
        ({file: None}, f"{file} is listed in the manifest and missing"),
        ({"torch.py": b"raise SystemExit"}, "torch.py is not listed in the manifest"),
    ]
    whole = bundle.read_bytes()
    for change, expected in cases:
        bundle.write_bytes(whole)
        assert verify(rewritten(bundle, change)) == [expected]
        with pytest.raises(Refused, match=r"altered|missing|not listed"):
            verified(read_files(bundle))


def test_a_manifest_that_names_other_hashes_does_not_pass(bundle: Path) -> None:
    manifest = inspect(bundle)
    manifest["patches"][0]["sha256"] = "0" * 64
    (problem,) = verify(rewritten(bundle, {"manifest.json": json.dumps(manifest).encode()}))
    assert "another sha256" in problem
    manifest["schema_version"] = 2
    (problem,) = verify(rewritten(bundle, {"manifest.json": json.dumps(manifest).encode()}))
    assert problem.startswith("the manifest does not follow its schema: schema_version")
    with pytest.raises(Refused, match="schema version 2"):
        verified(read_files(bundle))


def test_entries_that_lead_out_of_the_archive_or_are_links_are_refused(bundle: Path) -> None:
    link = zipfile.ZipInfo("link")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    for entry, expected in ((zipfile.ZipInfo("../evil.py"), "leads out"), (zipfile.ZipInfo("/evil.py"), "leads out"), (link, "is a link")):
        path = bundle.with_name("changed.zip")
        path.write_bytes(bundle.read_bytes())
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr(entry, "x")
        assert any(expected in problem for problem in verify(path))
        with pytest.raises(Refused, match=expected):
            read_files(path)


def test_a_link_in_an_unpacked_bundle_is_refused(bundle: Path, tmp_path: Path) -> None:
    folder = tmp_path / "unpacked"
    zipfile.ZipFile(bundle).extractall(folder)
    (folder / "patches" / "more.py").symlink_to("/etc/hostname")
    assert verify(folder) == ["patches/more.py is a link or a special file"]
    with pytest.raises(Refused, match="is a link"):
        read_files(folder)


def test_oversized_and_duplicate_entries_are_refused(bundle: Path) -> None:
    buffer = io.BytesIO(bundle.read_bytes())
    with zipfile.ZipFile(buffer, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("evidence/zeros.json", bytes(17 << 20))
    bundle.write_bytes(buffer.getvalue())
    assert any("has 17825792 bytes" in problem for problem in verify(bundle))
    with pytest.raises(Refused, match="17825792 bytes"):
        read_files(bundle)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 nothing", b"\x00" * 100])
def test_what_is_no_archive_is_said_in_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bundle.zip"
    path.write_bytes(content)
    assert len(verify(path)) == 1
    with pytest.raises(BadBundle):
        inspect(path)
    with pytest.raises(Refused):
        read_files(path)
    assert verify(tmp_path / "absent.zip") == ["there is no such file"]
