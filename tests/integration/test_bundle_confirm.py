import sys
from dataclasses import replace
from pathlib import Path

import pytest
from bundle_making import FAST, SCRIPTS, contents

from llm4llm.kit import sha256_file
from llm4llm.sandbox import Limits, Sandbox, scrubbed
from llm4llm.schema.job import Request
from llm4llm.stages.bundle.launching import Scene, confirm


@pytest.fixture
def request_of_stack(tmp_path: Path) -> Request:
    import os

    script = SCRIPTS / "confirmed_stack.py"
    environment = {**scrubbed(os.environ), "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    return Request(
        script=str(script),
        script_sha256=sha256_file(script),
        working_directory=str(tmp_path),
        python=sys.executable,
        environment=environment,
    )


def test_a_bundle_is_confirmed_by_output_hits_and_paired_times(tmp_path: Path, request_of_stack: Request, home: Path) -> None:
    with Sandbox(home) as sandbox:
        scene = Scene(sandbox, Limits(wall_s=120), tmp_path / "confirm", script_time_limit_s=60)
        kept = confirm(contents(), request_of_stack, scene, 20.0)
        assert kept.decision == "keep", kept.reason
        assert {check.name: check.passed for check in kept.checks} == {"applied": True, "exit_code": True, "stdout": True}
        assert "1 differ in every run" in kept.checks[2].detail
        assert [site.hits for site in kept.sites["cand_fast"]] == [3, 3]
        assert kept.timing is not None
        assert kept.timing.ci95 is not None
        assert kept.timing.ci95[0] > 1.02

        wrong = confirm(contents(FAST.replace("x * state", "x * state * 2")), request_of_stack, scene, 10.0)
        assert (wrong.decision, wrong.reason.code) == ("drop", "check_stdout")

        acceptance = contents().acceptance
        patch = acceptance.kept[0].model_copy(update={"family": "0" * 64})
        other = replace(contents(), acceptance=acceptance.model_copy(update={"kept": (patch,)}))
        misfit = confirm(other, request_of_stack, scene, 10.0)
        assert misfit.reason.code == "check_applied"
        assert "is not the module" in misfit.reason.text
