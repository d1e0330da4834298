"""Every command with its options and help; what a command does is imported when it is called, so that --help is fast."""

from pathlib import Path
from typing import Annotated, Any

import typer

import llm4llm
from llm4llm.cli import say
from llm4llm.schema.job import StageName

app = typer.Typer(
    name="llm4llm",
    help="Make an unmodified PyTorch inference script faster: verified, guarded, reversible patches, with proof.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
bundle_app = typer.Typer(help="Look into a bundle, or check it.", no_args_is_help=True)
app.add_typer(bundle_app, name="bundle")


class WithScriptArguments(typer.core.TyperCommand):
    """A command whose usage line shows where the script's own arguments go."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- SCRIPT ARGS...]"]


Script = Annotated[Path, typer.Argument(metavar="SCRIPT.py", help="The script, as you run it: python SCRIPT.py.", show_default=False)]
Out = Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Folder for the results.", show_default="llm4llm-out/JOB")]
Python = Annotated[
    str | None,
    typer.Option("--python", metavar="PATH", help="Interpreter that runs the script: your own environment.", show_default="this one"),
]
Environment = Annotated[
    list[str],
    typer.Option(
        "--env", metavar="NAME[=VALUE]", help="A variable that the script may see, besides the usual harmless ones. May be repeated."
    ),
]
Stdin = Annotated[
    str | None,
    typer.Option("--stdin", metavar="FILE", help="What the script reads from standard input; - takes ours.", show_default="nothing"),
]
Budget = Annotated[str, typer.Option("--budget", metavar="TIME", help="Time that the job may take, like 90s, 10m or 1h30m.")]
Target = Annotated[str, typer.Option("--target", metavar="NAME", help="Target profile: auto is this machine.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"llm4llm {llm4llm.__version__}")
        raise typer.Exit


@app.callback()
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)] = False) -> None:
    pass


@app.command(cls=WithScriptArguments)
def optimize(  # noqa: PLR0913 (each option is a parameter to typer)
    ctx: typer.Context,
    script: Annotated[
        Path | None, typer.Argument(metavar="SCRIPT.py", help="The script, as you run it: python SCRIPT.py.", show_default=False)
    ] = None,
    out: Out = None,
    agent: Annotated[str, typer.Option("--agent", metavar="NAME", help="Who proposes candidates.")] = "seeds",
    target: Target = "auto",
    budget: Budget = "10m",
    min_gain: Annotated[
        float, typer.Option("--min-gain", metavar="RATIO", help="End-to-end speedup that the low end of the 95 % interval must exceed.")
    ] = 1.02,
    python: Python = None,
    env: Environment = [],  # noqa: B006 (typer copies it)
    stdin: Stdin = None,
    resume: Annotated[
        str | None, typer.Option("--resume", metavar="JOB", help="Continue a stored job; finished stages are not repeated.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Run the whole loop on a script: profile it, try replacements, keep what makes the whole workload faster, pack a bundle.

    Writes bundle.zip (if anything was accepted), report.json, report.html, script.stdout and script.stderr.

    [bold]Examples[/bold]

      llm4llm optimize generate.py

      llm4llm optimize generate.py --out results --budget 20m -- --prompt-len 512

      llm4llm optimize serve.py --python ~/venv/bin/python --env HF_HOME --stdin prompts.txt

      llm4llm optimize --resume job_1m8qy2zkv66zqdhgf

    [bold]Exit codes[/bold]: 0 the loop ran to its end, with or without a patch; 1 the job failed; 2 unusable input; 130 interrupted.
    """
    from llm4llm.cli import optimize as command
    from llm4llm.cli.request import Options

    if (script is None) == (resume is None):
        raise typer.BadParameter("give a SCRIPT.py, or --resume JOB and no script", ctx=ctx)
    if resume is not None:
        raise typer.Exit(command.resume(resume, out, as_json))
    assert script is not None
    options = Options(script, ctx.obj, python, tuple(env), stdin, target, agent, budget, min_gain)
    raise typer.Exit(command.start(options, out, as_json))


@app.command(cls=WithScriptArguments)
def profile(  # noqa: PLR0913 (each option is a parameter to typer)
    ctx: typer.Context,
    script: Script,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Folder for report and script output.", show_default="none")
    ] = None,
    budget: Budget = "10m",
    python: Python = None,
    env: Environment = [],  # noqa: B006 (typer copies it)
    stdin: Stdin = None,
    as_json: Json = False,
) -> None:
    """Show where the workload's time goes: module family x phase, calls, share, self share, bound, and the end-to-end ceiling (Amdahl).

    [bold]Examples[/bold]

      llm4llm profile generate.py

      llm4llm profile generate.py --json -- --prompt-len 512
    """
    from llm4llm.cli import profile as command
    from llm4llm.cli.request import Options

    options = Options(script, ctx.obj, python, tuple(env), stdin, budget=budget, stop_after=StageName.PROFILE)
    raise typer.Exit(command.profile(options, out, as_json))


@app.command(cls=WithScriptArguments)
def tasks(  # noqa: PLR0913 (each option is a parameter to typer)
    ctx: typer.Context,
    script: Script,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder that gets one folder per task.", show_default=False)],
    target: Target = "auto",
    budget: Budget = "10m",
    python: Python = None,
    env: Environment = [],  # noqa: B006 (typer copies it)
    stdin: Stdin = None,
) -> None:
    """Write a reproducible task folder for every hotspot; one JSON line each on stdout.

    A folder holds the module with its weights, captured calls and the source of its class: all that llm4llm judge needs.

    [bold]Examples[/bold]

      llm4llm tasks generate.py --out tasks

      llm4llm tasks generate.py --out tasks -- --seed 7 | jq -r .id
    """
    from llm4llm.cli import profile as command
    from llm4llm.cli.request import Options

    options = Options(script, ctx.obj, python, tuple(env), stdin, target, budget=budget, stop_after=StageName.TASK)
    raise typer.Exit(command.tasks(options, out))


@app.command()
def judge(
    task: Annotated[Path, typer.Argument(metavar="TASK_DIR", help="A folder that llm4llm tasks wrote.", show_default=False)],
    candidate: Annotated[
        Path, typer.Argument(metavar="CANDIDATE.py", help="One file with forward(module, state, ...).", show_default=False)
    ],
    python: Python = None,
    target: Annotated[
        str, typer.Option("--target", metavar="NAME", help="GPU that kernels are compiled for: auto is the task's own.")
    ] = "auto",
    time_limit: Annotated[str, typer.Option("--time-limit", metavar="TIME", help="Time that the verdict may take.")] = "5m",
    as_json: Json = False,
) -> None:
    """Judge one candidate on one task: compiled, right, without side effects, faster.

    [bold]Examples[/bold]

      llm4llm judge tasks/task_0123 my_norm.py

      llm4llm judge tasks/task_0123 my_norm.py --json | jq .speedup

    The judge itself is tried by: llm4llm judge selftest

    [bold]Exit codes[/bold]: 0 passed, 1 not passed, 2 unusable input.
    """
    from llm4llm.cli import judge as command

    raise typer.Exit(command.judge(task, candidate, command.How(target, time_limit, python), as_json))


@app.command(say.SELFTEST)
def judge_selftest(
    corpus: Annotated[
        Path | None,
        typer.Option("--corpus", metavar="DIR", help="workload.py, labels.json and candidates/; the shipped one if not given."),
    ] = None,
    dtype: Annotated[str, typer.Option("--dtype", metavar="NAME", help="float32, bfloat16 or all.")] = "float32",
    kind: Annotated[
        list[str],
        typer.Option("--kind", metavar="KIND", help="Only candidates of this kind; may be repeated.", show_default=False),
    ] = [],  # noqa: B006 (typer copies it)
    judges: Annotated[
        int | None, typer.Option("--judges", metavar="N", min=1, help="Judges side by side; half of the cores if not given.")
    ] = None,
    python: Python = None,
    as_json: Json = False,
) -> None:
    """Try the judge on candidates with known answers: planted faults have to be caught, honest files have to pass.

    [bold]Examples[/bold]

      llm4llm judge selftest

      llm4llm judge selftest --dtype all --kind cheating --json | jq .clean

    [bold]Exit codes[/bold]: 0 nothing missed and nothing falsely rejected, 1 otherwise, 2 unusable input.
    """
    from llm4llm.cli import selftest as command

    raise typer.Exit(command.run(command.Asked(corpus, dtype, tuple(kind), judges, python), as_json))


@app.command(cls=WithScriptArguments)
def run(
    ctx: typer.Context,
    script: Script,
    bundle: Annotated[Path, typer.Option("--bundle", metavar="B.zip", help="A bundle that llm4llm optimize wrote.", show_default=False)],
    python: Python = None,
    env: Environment = [],  # noqa: B006 (typer copies it)
    quiet: Annotated[bool, typer.Option("--quiet", help="Leave stderr to the script: do not say how often the patches ran.")] = False,
) -> None:
    """Run an unmodified script with a bundle applied to its models; same output, same exit code.

    At the end one line on stderr says how often each patch ran (hits), and how often the original did in its place (fallbacks).

    [bold]Example[/bold]

      llm4llm run --bundle llm4llm-out/job_1m8qy2zkv66zqdhgf/bundle.zip generate.py -- --prompt-len 512
    """
    from llm4llm.cli import bundle as command
    from llm4llm.cli.request import Options

    raise typer.Exit(command.run(bundle, Options(script, ctx.obj, python, tuple(env)), quiet))


Bundle = Annotated[Path, typer.Argument(metavar="B.zip", help="A bundle that llm4llm optimize wrote.", show_default=False)]


@bundle_app.command("inspect")
def bundle_inspect(bundle: Bundle, as_json: Json = False) -> None:
    """Show what a bundle holds: patches, where they go, and the evidence for them."""
    from llm4llm.cli import bundle as command

    raise typer.Exit(command.inspect(bundle, as_json))


@bundle_app.command("verify")
def bundle_verify(bundle: Bundle, as_json: Json = False) -> None:
    """Check every file of a bundle against its manifest. Exit codes: 0 whole, 2 not a bundle or changed."""
    from llm4llm.cli import bundle as command

    raise typer.Exit(command.verify(bundle, as_json))


@app.command()
def worker(
    count: Annotated[int, typer.Option("--count", min=1, help="How many worker processes.")] = 1,
    once: Annotated[bool, typer.Option("--once", help="Run one waiting job per worker, if there is any, then end.")] = False,
    poll: Annotated[float, typer.Option("--poll", metavar="SECONDS", min=0.05, help="Time between two looks for work.")] = 1.0,
    as_json: Annotated[bool, typer.Option("--json", help="Log as JSON lines on stderr.")] = False,
) -> None:
    """Run jobs that were submitted to the service, on the same database and home folder as llm4llm serve.

    SIGTERM and Ctrl-C hand back the job that runs, to be continued by another worker; a second one ends everything at once.

    [bold]Examples[/bold]

      llm4llm worker --count 2

      CUDA_VISIBLE_DEVICES=1 LLM4LLM_DATABASE_URL=postgresql://user@db/jobs llm4llm worker --json
    """
    from llm4llm.cli import worker as command
    from llm4llm.worker.loop import Rounds

    raise typer.Exit(command.worker(count, Rounds(poll, once), as_json))


@app.command()
def doctor(python: Python = None, as_json: Json = False) -> None:
    """Say what this machine can do, one line each, with the fix for what is missing."""
    from llm4llm.cli import doctor as command

    raise typer.Exit(command.doctor(python, as_json))
