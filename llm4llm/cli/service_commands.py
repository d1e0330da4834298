"""The commands around the service, with their options and help; added to the app that they are imported with."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from llm4llm.cli.commands import Budget, Json, Script, Target, WithScriptArguments, app
from llm4llm.errors import UnknownJob
from llm4llm.schema.apikey import Scope

__all__ = ["app"]

keys_app = typer.Typer(help="Make, list and revoke API keys of the service.", no_args_is_help=True)
app.add_typer(keys_app, name="keys")

_LOCAL = "http://127.0.0.1:8421"
Server = Annotated[
    str | None, typer.Option("--server", metavar="URL", envvar="LLM4LLM_SERVER", help="The server to talk to.", show_default=_LOCAL)
]
MaybeServer = Annotated[
    str | None,
    typer.Option("--server", metavar="URL", envvar="LLM4LLM_SERVER", help="Ask a server.", show_default="this machine's own jobs"),
]
JobId = Annotated[str, typer.Argument(metavar="JOB", help="A job's id.", show_default=False)]


@app.command()
def serve(
    host: Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8421,
    workers: Annotated[int | None, typer.Option("--workers", min=0, max=64, help="Workers that run jobs here.", show_default="1")] = None,
    require_keys: Annotated[bool, typer.Option("--require-keys", help="Ask for API keys; a must beyond loopback.")] = False,
    without_isolation: Annotated[
        bool, typer.Option("--without-isolation", help="Listen beyond loopback although children can't be isolated here.")
    ] = False,
) -> None:
    """Serve the HTTP API. Without any configuration: SQLite and files under LLM4LLM_HOME, on this machine only, without keys.

    [bold]Examples[/bold]

      llm4llm serve

      llm4llm keys create team --scope submit --scope read && llm4llm serve --host 0.0.0.0 --require-keys

    SIGTERM and Ctrl-C end it in good order.
    """
    from llm4llm.cli import serve as command
    from llm4llm.cli.embedded import DEFAULT

    count = DEFAULT if workers is None else workers
    raise typer.Exit(command.serve(command.Serving(host, port, count, require_keys, without_isolation)))


@app.command(cls=WithScriptArguments)
def submit(  # noqa: PLR0913 (each option is a parameter to typer)
    ctx: typer.Context,
    script: Script,
    file: Annotated[
        list[Path], typer.Option("--file", metavar="F", help="One more file that the script needs. May be repeated.", show_default="none")
    ] = [],  # noqa: B006 (typer copies it)
    follow: Annotated[bool, typer.Option("--follow", help="Show what happens until the job has ended.")] = False,
    agent: Annotated[str, typer.Option("--agent", metavar="NAME", help="Who proposes candidates.")] = "seeds",
    target: Target = "auto",
    budget: Budget = "10m",
    min_gain: Annotated[float, typer.Option("--min-gain", metavar="RATIO", help="End-to-end speedup that must be exceeded.")] = 1.02,
    env: Annotated[list[str], typer.Option("--env", metavar="NAME=VALUE", help="A variable for the script. May be repeated.")] = [],  # noqa: B006
    network: Annotated[bool, typer.Option("--network", help="Ask for network access for the script.")] = False,
    idempotency_key: Annotated[
        str | None,
        typer.Option("--idempotency-key", metavar="KEY", help="Submitting again with it names the same job.", show_default="a new one"),
    ] = None,
    server: Server = None,
    as_json: Json = False,
) -> None:
    """Hand a script in to a server and print the job's id. The key, where one is required, comes from LLM4LLM_API_KEY.

    [bold]Examples[/bold]

      llm4llm submit generate.py --follow -- --prompt-len 512

      llm4llm submit serve.py --file model/net.py --file prompts.txt --budget 20m

    [bold]Exit codes[/bold]: 0 handed in (with --follow: the job succeeded); 1 failed; 2 refused by the server; 130 no longer following.
    """
    from llm4llm.cli import remote as command

    options = {"agent": agent, "target": target, "min_gain": min_gain, "network": network}
    wanted = command.Submission(script, ctx.obj, tuple(file), tuple(env), budget, idempotency_key, options)
    raise typer.Exit(command.submit(wanted, server, follow, as_json))


@app.command()
def jobs(
    limit: Annotated[int, typer.Option("--limit", min=1, help="How many, newest first.")] = 20,
    server: MaybeServer = None,
    as_json: Json = False,
) -> None:
    """List jobs: this machine's own, or a server's."""
    if server is not None:
        from llm4llm.cli import remote

        raise typer.Exit(remote.jobs(limit, server, as_json))
    from llm4llm.cli import jobs as command

    raise typer.Exit(command.jobs(limit, as_json))


@app.command()
def status(job: JobId, server: MaybeServer = None, as_json: Json = False) -> None:
    """Show one job: its state, its stages, and how to continue it."""
    if server is not None:
        from llm4llm.cli import remote

        raise typer.Exit(remote.status(job, server, as_json))
    from llm4llm.cli import jobs as command

    try:
        code = command.status(job, as_json)
    except UnknownJob as unknown:
        # it may be a job of the server that submit, logs and download speak to
        from llm4llm.cli import remote
        from llm4llm.client import NotFound, ServerUnreachable

        try:
            code = remote.status(job, None, as_json)
        except (ServerUnreachable, NotFound):
            raise unknown from None
    raise typer.Exit(code)


@app.command()
def cancel(job: JobId, server: Server = None, as_json: Json = False) -> None:
    """Ask a server to end a job."""
    from llm4llm.cli import remote as command

    raise typer.Exit(command.cancel(job, server, as_json))


@app.command()
def logs(
    job: JobId,
    stream: Annotated[Literal["events", "stdout", "stderr"], typer.Option("--stream", help="What to print.")] = "events",
    server: Server = None,
    as_json: Json = False,
) -> None:
    """Print what happened to a server's job, or what its script printed."""
    from llm4llm.cli import remote as command

    raise typer.Exit(command.logs(job, server, stream, as_json))


@app.command()
def download(
    job: JobId,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Where to put it.", show_default="bundle-JOB.zip")] = None,
    server: Server = None,
    as_json: Json = False,
) -> None:
    """Download a job's bundle and verify it; an interrupted download is continued."""
    from llm4llm.cli import remote as command

    raise typer.Exit(command.download(job, server, out, as_json))


@keys_app.command("create")
def keys_create(  # noqa: PLR0913 (each option is a parameter to typer)
    name: Annotated[str, typer.Argument(metavar="NAME", help="Who or what will use it.", show_default=False)],
    scope: Annotated[list[Scope], typer.Option("--scope", help="What it may do. May be repeated.")] = [Scope.SUBMIT, Scope.READ],  # noqa: B006
    concurrent_jobs: Annotated[int | None, typer.Option("--concurrent-jobs", help="Jobs that have not ended.", show_default="20")] = None,
    request_bytes: Annotated[int | None, typer.Option("--request-bytes", help="Size of one request.", show_default="64 MiB")] = None,
    budget: Annotated[str | None, typer.Option("--budget", metavar="TIME", help="Largest budget of one job.", show_default="6h")] = None,
    rate: Annotated[float | None, typer.Option("--rate", help="Requests per second, in the long run.", show_default="50")] = None,
    burst: Annotated[int | None, typer.Option("--burst", help="Requests at once.", show_default="200")] = None,
    as_json: Json = False,
) -> None:
    """Make a key and print it, this once: only its hash is stored."""
    from llm4llm.cli import keys as command

    wanted = command.Wanted(name, tuple(scope), concurrent_jobs, request_bytes, budget, rate, burst)
    raise typer.Exit(command.create(wanted, as_json))


@keys_app.command("list")
def keys_list(as_json: Json = False) -> None:
    """List all keys, without their secrets."""
    from llm4llm.cli import keys as command

    raise typer.Exit(command.list_keys(as_json))


@keys_app.command("revoke")
def keys_revoke(key: Annotated[str, typer.Argument(metavar="KEY", help="A key's id.", show_default=False)], as_json: Json = False) -> None:
    """Make a key useless; its jobs stay."""
    from llm4llm.cli import keys as command

    raise typer.Exit(command.revoke(key, as_json))
