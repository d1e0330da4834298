"""What a fresh process has to show before patches are kept."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from llm4llm.sandbox import ChildSpec, Limits, Sandbox
from llm4llm.schema.acceptance import Patch, Trialled
from llm4llm.schema.capture import Capture
from llm4llm.schema.job import Job, JobStatus, Request
from llm4llm.schema.results import Results
from llm4llm.store import Store
from llm4llm.worker.confirm import Confirmation
from llm4llm.worker.host import HostSetting

PATCH = Patch(
    candidate="cand_1", candidate_sha256="0" * 64, task="t_1", root="r0", module_class="m.Slow", phase="forward", family="f",
    paths=("slow",), config={}, proven_domain={},
)  # fmt: skip
ENVIRONMENT = {"python": "3.11", "platform": "linux", "cpu": "c", "cpu_threads": 1, "torch": "2", "target": "cpu"}
PAIRS = {"baseline_ms": [10.0, 10.2, 9.9, 10.1], "patched_ms": [5.0, 5.1, 5.0, 4.9], "method": "m"}
SITE = {"model": "Net", "patch": "cand_1", "path": "slow", "hits": 4, "fallbacks": 0, "fallback_reasons": {}, "disabled": None}


class FakeSandbox:
    """Children that have printed and reported before anybody asks."""

    def __init__(self) -> None:
        self.outputs = {"patched": b"7 tokens\n", "plain": b"7 tokens\n"}
        self.report: dict[str, Any] | None = {"applied": True, "reason": None, "sites": [SITE], "pairs": PAIRS, "error": None}
        self.exit_code: int | None = 0
        self.written: str | None = None
        self.started: list[str] = []

    def start(self, spec: ChildSpec) -> Any:
        options = dict(zip(spec.arguments[::2], spec.arguments[1::2], strict=False))
        stdout, report = Path(options["--stdout"]), Path(options["--report"])
        self.started.append(stdout.stem)
        stdout.write_bytes(self.outputs[stdout.stem])
        if self.report is not None:
            report.write_text(json.dumps(self.report) if self.written is None else self.written)
        return SimpleNamespace(wait=lambda seconds: self.exit_code, kill=lambda: None, stderr_tail=lambda: "Killed\n")


class Unpacked(Confirmation):
    def _packed(self, patches: tuple[Patch, ...], results: Results) -> bytes:
        return b"bundle"


@pytest.fixture
def sandbox() -> FakeSandbox:
    return FakeSandbox()


def confirmed(sandbox: FakeSandbox, folder: Path, excuse: str | None = None) -> Trialled:
    (folder / "script.stdout").write_bytes(b"7 tokens\n")
    capture = {"end": {"kind": "returned", "exit_code": 0}, "environment": ENVIRONMENT, "roots": [], "drivers": [], "wall_ms": 1.0}
    results = Results(capture=Capture.model_validate(capture))
    request = Request(script="/s.py", script_sha256="0", working_directory="/", python="python3")
    job = Job(id="job_1", request=request, status=JobStatus.RUNNING, created_at="2025")
    store = SimpleNamespace(stages=SimpleNamespace(results=lambda job_id: results))
    setting = HostSetting(job, folder, Limits(), 600.0)
    return Unpacked(cast(Sandbox, sandbox), setting, cast(Store, store))((PATCH,), 60.0, excuse)


def test_equal_output_and_a_gain_are_kept(sandbox: FakeSandbox, tmp_path: Path) -> None:
    trial = confirmed(sandbox, tmp_path)
    assert trial.decision == "keep"
    assert all(check.passed for check in trial.checks)
    assert {check.name for check in trial.checks} == {"exit_code", "stdout", "applies", "exceptions"}
    assert trial.sites["cand_1"][0].hits == 4
    assert trial.timing is not None
    assert sandbox.started == ["patched"]


def test_other_output_is_dropped_after_a_second_look_at_the_script(sandbox: FakeSandbox, tmp_path: Path) -> None:
    sandbox.outputs["patched"] = b"8 tokens\n"
    trial = confirmed(sandbox, tmp_path)
    assert (trial.decision, trial.reason.code) == ("drop", "check_stdout")
    assert "'8 tokens' instead of '7 tokens'" in trial.reason.text
    assert sandbox.started == ["patched", "plain"]


def test_text_may_differ_where_the_models_own_rounding_decides_a_token(sandbox: FakeSandbox, tmp_path: Path) -> None:
    sandbox.outputs["patched"] = b"8 tokens\n"
    trial = confirmed(sandbox, tmp_path, "token 5 of row 0 differs within rounding")
    assert trial.decision == "keep"
    (stdout,) = [check for check in trial.checks if check.name == "stdout"]
    assert stdout.excused
    assert "'8 tokens' instead of '7 tokens'" in stdout.detail
    assert "token 5 of row 0" in stdout.detail


def test_an_excuse_for_text_excuses_nothing_else(sandbox: FakeSandbox, tmp_path: Path) -> None:
    sandbox.exit_code = 1
    assert confirmed(sandbox, tmp_path, "token 5 of row 0 differs within rounding").reason.code == "check_exit_code"


def test_numbers_that_vary_without_patches_may_vary_with_them(sandbox: FakeSandbox, tmp_path: Path) -> None:
    sandbox.outputs = {"patched": b"8 tokens\n", "plain": b"9 tokens\n"}
    assert confirmed(sandbox, tmp_path).decision == "keep"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"sites": [{**SITE, "hits": 0}]}, "never_ran"),
        ({"sites": [{**SITE, "disabled": "RuntimeError: x"}]}, "check_exceptions"),
        ({"applied": False, "reason": "another model", "pairs": None}, "check_applies"),
        ({"pairs": None, "error": "no room"}, "not_measured"),
        ({"pairs": {**PAIRS, "patched_ms": [10.1, 10.0, 10.1, 10.0]}}, "gain_too_small"),
    ],
)
def test_what_is_not_shown_is_dropped(sandbox: FakeSandbox, tmp_path: Path, change: dict[str, Any], code: str) -> None:
    assert sandbox.report is not None
    sandbox.report |= change
    trial = confirmed(sandbox, tmp_path)
    assert trial.decision == "drop"
    assert trial.reason.code in (code, "no_decision", "slower") if code == "gain_too_small" else trial.reason.code == code


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "[]", "{}", json.dumps({"applied": True, "reason": None, "sites": [7], "pairs": None, "error": None}), "{" * 10]
)
def test_a_report_that_is_none_is_a_reason(sandbox: FakeSandbox, tmp_path: Path, text: str) -> None:
    sandbox.written = text
    assert confirmed(sandbox, tmp_path).reason.code == "fresh_died"


@pytest.mark.parametrize("samples", [["x"], [{}], [1.0] * 100_000], ids=["text", "object", "many"])
def test_samples_of_another_form_are_no_gain(sandbox: FakeSandbox, tmp_path: Path, samples: list[Any]) -> None:
    assert sandbox.report is not None
    sandbox.report["pairs"] = {**PAIRS, "baseline_ms": samples, "patched_ms": samples}
    assert confirmed(sandbox, tmp_path).decision == "drop"


def test_whatever_lies_in_the_place_of_its_folder_is_replaced(sandbox: FakeSandbox, tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "job" / "confirm").symlink_to(tmp_path / "elsewhere")
    assert confirmed(sandbox, tmp_path / "job").decision == "keep"
    assert list((tmp_path / "elsewhere").iterdir()) == []
    for _ in range(1500):
        (tmp_path / "d").mkdir()
        (tmp_path / "job" / "confirm").rename(tmp_path / "d" / "d")
        (tmp_path / "d").rename(tmp_path / "job" / "confirm")
    assert confirmed(sandbox, tmp_path / "job").decision == "keep"


def test_a_process_that_ends_otherwise_is_a_reason(sandbox: FakeSandbox, tmp_path: Path) -> None:
    sandbox.exit_code = 1
    assert confirmed(sandbox, tmp_path).reason.code == "check_exit_code"
    sandbox.exit_code, sandbox.report = -9, None
    dead = confirmed(sandbox, tmp_path)
    assert dead.reason.code == "fresh_died"
    assert "Killed" in dead.reason.text
    sandbox.exit_code = None
    assert confirmed(sandbox, tmp_path).reason.code == "fresh_timeout"
