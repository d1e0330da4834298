"""The end of a job in a few lines for people."""

import shlex
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from llm4llm.cli.deliver import BUNDLE
from llm4llm.kit import counted

_HOTSPOTS_SHOWN = 8
_REASON_CHARACTERS = 160  # all of it is in the report


def summary(report: dict[str, Any], folder: Path) -> Iterator[str]:
    """Decision, accepted patches, the largest hotspots with their reasons, and where everything lies."""
    if report["job"]["status"] != "failed":  # a failure is told on stderr
        yield _decision(report)
    for patch in report["accepted"]:
        counters = ", ".join(counted(patch[f"{noun}s"], noun) for noun in ("site", "hit", "fallback"))
        yield f"  accepted  {patch['module_class']} ({patch['phase']})  by {patch['author']}: {counters}"
    spots = [spot for spot in report["hotspots"] if spot["status"] != "accepted"]
    for spot in sorted(spots, key=lambda spot: -float(spot["share"]))[:_HOTSPOTS_SHOWN]:
        reason = textwrap.shorten(spot["reason"], _REASON_CHARACTERS, placeholder=" …")
        yield f"  {spot['status']:<9} {spot['module_class']} ({spot['phase']}, {100 * spot['share']:.0f} %): {reason}"
    if len(spots) > _HOTSPOTS_SHOWN:
        yield f"  and {counted(len(spots) - _HOTSPOTS_SHOWN, 'smaller one')}, see the report"
    for note in report["notes"]:
        yield f"note: {note['text']}"
    yield f"report: {folder / 'report.html'}"
    if report["bundle"] is not None:
        yield f"bundle: {folder / BUNDLE}"
        request = report["job"]["request"]
        arguments = ["--", *request["arguments"]] if request["arguments"] else []
        yield "use it: " + shlex.join(["llm4llm", "run", "--bundle", str(folder / BUNDLE), request["script"], *arguments])


def _decision(report: dict[str, Any]) -> str:
    end, reason = report["end_to_end"], report["job"]["reason"]
    if end["decision"] == "accepted" and end["speedup"] is not None and end["ci95"]:
        low, high = end["ci95"]
        return f"accepted: {end['speedup']:.2f}x end to end, 95 % interval {low:.2f} to {high:.2f}, confirmed in a fresh process"
    return str(reason["text"]) if reason else "the job has not ended"
