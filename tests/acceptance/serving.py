"""`llm4llm serve` as a real process on a free port, and what tests ask of it."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from llm4llm.settings import Settings
from llm4llm.store import Store, open_store

REPOSITORY = Path(__file__).parents[2]
COMMAND = [sys.executable, "-c", "from llm4llm.cli.main import main; main()"]
_START_S = 60


@dataclass
class Service:
    """A running server."""

    url: str
    home: Path
    database: str
    process: subprocess.Popen[str]
    said: list[str] = field(default_factory=list)

    @property
    def settings(self) -> Settings:
        return Settings(home=self.home, database_url=self.database)

    def store(self) -> Store:
        """The server's own database and blobs, opened by us as well."""
        return open_store(self.settings.database, self.settings.blobs)

    def cli(self, *arguments: str, stdin: str = "", **more: str) -> subprocess.CompletedProcess[str]:
        """A command on the same home folder and database."""
        environment = environment_of(self.home, self.database) | {"LLM4LLM_SERVER": self.url} | more
        return subprocess.run(
            [*COMMAND, *arguments], env=environment, cwd=self.home, input=stdin, capture_output=True, text=True, timeout=120
        )

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(40)


def environment_of(home: Path, database: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LLM4LLM_")}
    return kept | {"PYTHONPATH": str(REPOSITORY), "LLM4LLM_HOME": str(home), "LLM4LLM_DATABASE_URL": database}


@contextmanager
def serving(home: Path, database: str = "", *options: str, **more: str) -> Iterator[Service]:
    command = [*COMMAND, "serve", "--port", "0", "--workers", "0", *options]
    environment = environment_of(home, database) | more
    with subprocess.Popen(command, env=environment, cwd=home, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        found, said = threading.Event(), []

        def read() -> None:
            assert process.stderr is not None
            for line in process.stderr:
                said.append(line)
                if "listening on" in line:
                    found.set()
            found.set()

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        try:
            assert found.wait(_START_S)
            address = re.search(r"listening on (http://\S+)", "".join(said))
            assert address is not None, "".join(said)
            yield Service(address[1], home, database, process, said)
        finally:
            process.kill()
            process.wait()
            reader.join(10)
