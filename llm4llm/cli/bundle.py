"""Bundles: run a script with one, look into one, check one."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from llm4llm.cli import say
from llm4llm.cli.opened import settings_with_home
from llm4llm.cli.request import Options, interpreter
from llm4llm.errors import BadBundle
from llm4llm.kit import counted
from llm4llm.sandbox import ChildSpec, Sandbox, with_given, without_secrets
from llm4llm.service.script import read_script
from llm4llm.stages.bundle import inspect as contents


def run(bundle: Path, options: Options, quiet: bool = False) -> int:
    """The script's own exit code, 128 + n for one that signal n ended; BadBundle and ScriptNotFound before anything runs."""
    problems = contents.verify(bundle)
    if problems:
        raise BadBundle(str(bundle), problems[0])
    script = os.path.abspath(options.script)
    read_script(script)
    own = ("--bundle", os.path.abspath(bundle), *(() if quiet else ("--counters",)))
    spec = ChildSpec(
        module="llm4llm.harness.launch",
        python=interpreter(options.python),
        working_directory=Path.cwd(),
        arguments=(*own, str(options.script), "--", *options.script_arguments),
        # the user's own run: whatever the script sees without us, except secrets, because a bundle is somebody's code
        environment=with_given(_ours_left_out(without_secrets(os.environ)), options.environment, os.environ),
        channel=False,
    )
    with Sandbox(settings_with_home().home) as sandbox:
        exit_code = sandbox.execute(spec)
    return exit_code if exit_code >= 0 else 128 - exit_code


def _ours_left_out(environment: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if not name.startswith("LLM4LLM_")}


def inspect(bundle: Path, as_json: bool) -> int:
    """What a bundle would do, where, and what was measured; its files are verified first."""
    problems = contents.verify(bundle)
    if problems:
        raise BadBundle(str(bundle), problems[0])
    manifest = contents.inspect(bundle)
    if as_json:
        say.result(json.dumps(manifest, sort_keys=True))
        return say.EXIT_OK
    for line in _lines(manifest):
        say.line(line)
    return say.EXIT_OK


def verify(bundle: Path, as_json: bool) -> int:
    """Every file against its hash, the manifest against its schema; nothing of the bundle is executed."""
    problems = contents.verify(bundle)
    if as_json:
        say.result(json.dumps({"whole": not problems, "problems": problems}))
    for problem in problems:
        say.note(f"{bundle}: {problem}")
    if not problems and not as_json:
        manifest = contents.inspect(bundle)
        say.line(f"{bundle}: whole, {counted(len(manifest['files']), 'file')}, {counted(len(manifest['patches']), 'patch', 'patches')}")
    return say.EXIT_UNUSABLE if problems else say.EXIT_OK


def _lines(manifest: dict[str, Any]) -> Iterator[str]:
    environment = manifest["environment"]
    place = environment.get("gpu") or environment.get("cpu") or "an unnamed machine"
    patches = counted(len(manifest["patches"]), "patch", "patches")
    yield f"{patches}, proven on {place}, torch {environment.get('torch')}, triton {environment.get('triton')}"
    for model in manifest["models"]:
        kind = f"{', '.join(model['dtypes'])} on {', '.join(model['devices'])}"
        yield f"model: {model['module_class']}, {model['parameters']:,} parameters, {kind}"
    for patch in manifest["patches"]:
        where = counted(len(patch["paths"]), "site") if len(patch["paths"]) > 1 else str(*patch["paths"])
        config = f", {json.dumps(patch['config'], sort_keys=True)}" if patch["config"] else ""
        yield f"patch: {patch['name']} on {patch['module_class']} ({patch['phase']}), {where}{config}"
        yield f"  {' '.join(patch['hypothesis'].split())}"
        for guard in patch["guards"]:
            yield f"  only if {guard}"
    for name in ("in_model", "fresh_process"):
        yield from _measured(name.replace("_", " "), manifest["evidence"].get(name))


def _measured(where: str, trial: dict[str, Any] | None) -> Iterator[str]:
    timing = trial["timing"] if trial else None
    if timing and timing["speedup"] and timing["ci95"]:
        low, high = timing["ci95"]
        pairs = len(timing["patched_ms"])
        yield f"measured {where}: {timing['speedup']:.2f}x end to end, 95 % interval {low:.2f} to {high:.2f}, {counted(pairs, 'pair')}"
