"""The program of one worker of a fleet: python -m llm4llm.worker; ends when its standard input does."""

import argparse
import sys

from llm4llm.errors import Llm4llmError
from llm4llm.kit import set_up_logs
from llm4llm.settings import load_settings
from llm4llm.worker.loop import Rounds
from llm4llm.worker.process import log_level, run_worker


def main() -> int:
    """Exit code 0 after an orderly end, 1 if the worker can't work here."""
    parser = argparse.ArgumentParser(prog="llm4llm.worker")
    parser.add_argument("--poll", type=float, default=1.0)
    parser.add_argument("--once", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    try:
        settings = load_settings()
        set_up_logs(options.json, log_level(settings))
        run_worker(settings, Rounds(options.poll, options.once), sys.stdin.fileno())
    except Llm4llmError as error:
        sys.stderr.write(f"llm4llm: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
