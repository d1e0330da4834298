import json
import os
from pathlib import Path
from typing import Any

import pytest
from bundle_making import FAST, REPOSITORY, SCRIPTS, python, write_bundle

SCRIPT = str(SCRIPTS / "run_stack.py")


def launch(tmp_path: Path, *options: str, script: str = SCRIPT, arguments: tuple[str, ...] = (), **more: Any) -> Any:
    variables = {"PYTHONPATH": str(REPOSITORY), "PYTHONSAFEPATH": "1", **more.pop("environment", {})}
    return python(["-m", "llm4llm.harness.launch", *options, script, "--", *arguments], tmp_path, stdin="typed\n", **variables)


def plain(tmp_path: Path, *arguments: str, **environment: str) -> Any:
    return python([SCRIPT, *arguments], tmp_path, stdin="typed\n", **environment)


@pytest.mark.parametrize("ending", ["3", "raise"])
def test_output_and_exit_code_are_the_scripts(tmp_path: Path, ending: str) -> None:
    report = tmp_path / "report.json"
    done = launch(tmp_path, "--bundle", str(write_bundle(tmp_path)), "--report", str(report), arguments=(ending, "--", "-x"))
    expected = plain(tmp_path, ending, "--", "-x")
    assert done.stdout.replace("True", "False") == expected.stdout
    assert "True" in done.stdout  # the script can see its patched module, in a dict that nobody prints otherwise
    assert done.returncode == expected.returncode == {"3": 3, "raise": 1}[ending]
    assert done.stderr == expected.stderr
    facts = json.loads(report.read_text())
    assert facts["applied"] is True
    assert [(site["path"], site["hits"], site["fallbacks"]) for site in facts["sites"]] == [("layers.0", 4, 0), ("layers.1", 4, 0)]
    assert [call["method"] for call in facts["drivers"]] == ["generate", "generate", "generate", "forward"]
    assert facts["end"]["exit_code"] == expected.returncode


def test_a_model_that_it_is_not_for_runs_unpatched_and_one_line_says_so(tmp_path: Path) -> None:
    done = launch(tmp_path, "--bundle", str(write_bundle(tmp_path)), arguments=("3",), environment={"LAYERS": "3"})
    expected = plain(tmp_path, "3", LAYERS="3")
    assert (done.stdout, done.returncode) == (expected.stdout, 3)
    (line,) = done.stderr.splitlines()
    assert line.startswith("llm4llm: the bundle was not applied: this Stack differs in configuration, dtype or shapes")


def test_a_damaged_bundle_stops_before_the_script(tmp_path: Path) -> None:
    bundle = write_bundle(tmp_path)
    bundle.write_bytes(bundle.read_bytes()[:-200])
    done = launch(tmp_path, "--bundle", str(bundle))
    assert (done.stdout, done.returncode) == ("", 2)
    assert len(done.stderr.splitlines()) == 1


def test_pairs_are_measured_after_the_script_with_its_streams_kept_apart(tmp_path: Path) -> None:
    report, out, typed = tmp_path / "report.json", tmp_path / "out", tmp_path / "typed"
    typed.write_text("typed\n")
    files = ("--stdin", str(typed), "--stdout", str(out), "--stderr", str(tmp_path / "err"))
    done = launch(
        tmp_path,
        "--bundle",
        str(write_bundle(tmp_path)),
        "--report",
        str(report),
        *files,
        "--pairs",
        "6",
        "--time-limit",
        "30",
        arguments=("3",),
    )
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 3)
    assert out.read_text().replace("True", "False") == plain(tmp_path, "3").stdout
    facts = json.loads(report.read_text())
    assert facts["error"] is None
    assert len(facts["pairs"]["baseline_ms"]) == len(facts["pairs"]["patched_ms"]) == 6
    assert min(facts["pairs"]["baseline_ms"]) > max(facts["pairs"]["patched_ms"])
    assert [site["hits"] for site in facts["sites"]] == [4, 4]  # of the script's own run


def test_a_script_without_a_model_runs_as_it_is_and_inherits_nothing_of_the_staged_harness(tmp_path: Path) -> None:
    script = tmp_path / "look.py"
    script.write_text(
        "import os, sys\nprint(sorted(name for name in os.environ if name.startswith(('PYTHON', 'LLM4LLM_O'))), sys.argv, __name__)\n"
    )
    done = launch(tmp_path, "--bundle", str(write_bundle(tmp_path)), script=script.name, arguments=("a b",))
    assert done.stdout == f"[] {['look.py', 'a b']} __main__\n"
    assert done.stderr == "llm4llm: the bundle was not applied: the script did not import torch\n"
    script.write_text("import torch\nprint(torch.ones(1).item())\n")
    done = launch(tmp_path, "--bundle", str(write_bundle(tmp_path)), script=script.name)
    assert (done.stdout, done.stderr) == ("1.0\n", "llm4llm: the bundle was not applied: the script called no model\n")


def test_a_prepare_that_raises_leaves_the_run_alone(tmp_path: Path) -> None:
    bundle = write_bundle(tmp_path, FAST.replace("return module.weight.detach()", "raise KeyError('gone')"))
    done = launch(tmp_path, "--bundle", str(bundle))
    assert done.stdout == plain(tmp_path).stdout
    assert done.stderr == "llm4llm: the bundle was not applied: Stack: a patch could not be prepared (KeyError: 'gone')\n"
    assert os.listdir(tmp_path / "cache" / "llm4llm_bundle")
