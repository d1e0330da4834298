"""llm4llm run: the user's script, streams, arguments and exit code, with the patches on."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from bundle_making import REPOSITORY, SCRIPTS, write_bundle

SCRIPT = str(SCRIPTS / "run_stack.py")
COMMAND = [sys.executable, "-c", "from llm4llm.cli.main import main; main()", "run"]


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", "SOME_API_KEY": "made-up", **more}


def run(tmp_path: Path, *arguments: str, stdin: str = "typed\n", **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments], cwd=tmp_path, env=environment(**more), input=stdin, capture_output=True, text=True, timeout=120
    )


@pytest.mark.parametrize(("ending", "code"), [("end", 0), ("3", 3), ("raise", 1)])
def test_streams_arguments_and_exit_code_are_the_scripts(tmp_path: Path, ending: str, code: int) -> None:
    bundle = str(write_bundle(tmp_path))
    done = run(tmp_path, "--quiet", "--bundle", bundle, SCRIPT, "--", ending, "--", "-x")
    plain = subprocess.run(
        [sys.executable, SCRIPT, ending, "--", "-x"],
        cwd=tmp_path,
        env=environment(),
        input="typed\n",
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout.replace("True", "False") == plain.stdout
    assert "True" in done.stdout
    assert (done.returncode, done.stderr) == (plain.returncode, plain.stderr)
    assert done.returncode == code
    told = run(tmp_path, "--bundle", bundle, SCRIPT, "--", ending, "--", "-x")
    assert (told.returncode, told.stdout) == (done.returncode, done.stdout)
    assert told.stderr == done.stderr + "llm4llm: cand_fast: 8 hits, 0 fallbacks at 2 sites\n"


def test_other_variables_pass_and_secrets_only_if_they_are_named(tmp_path: Path) -> None:
    script = tmp_path / "show.py"
    script.write_text(
        "import os; print(os.environ.get('SOME_API_KEY'), os.environ.get('MODE'), [n for n in os.environ if n.startswith('LLM4LLM')])"
    )
    bundle = str(write_bundle(tmp_path))
    assert run(tmp_path, "--bundle", bundle, "show.py", MODE="x").stdout == "None x []\n"
    assert run(tmp_path, "--bundle", bundle, "--env", "SOME_API_KEY", "show.py", MODE="x").stdout == "made-up x []\n"


def test_ctrl_c_reaches_the_script(tmp_path: Path) -> None:
    script = tmp_path / "waits.py"
    script.write_text(
        "import sys, time\ntry:\n    print('ready', flush=True)\n    time.sleep(60)\nexcept KeyboardInterrupt:\n    sys.exit(9)\n"
    )
    command = [*COMMAND, "--bundle", str(write_bundle(tmp_path)), "waits.py"]
    with subprocess.Popen(command, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 9


@pytest.mark.parametrize(("bundle", "script", "said"), [("none.zip", SCRIPT, "none.zip"), (None, "none.py", "none.py")])
def test_nothing_runs_without_a_bundle_and_a_script(tmp_path: Path, bundle: str | None, script: str, said: str) -> None:
    done = run(tmp_path, "--bundle", bundle or str(write_bundle(tmp_path)), script)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
