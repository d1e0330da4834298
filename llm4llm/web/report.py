"""The report of a job as files: `report.json` for programs and `report.html`, one self-contained page, for people."""

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from llm4llm.kit.files import write_atomic
from llm4llm.kit.json import canonical_json
from llm4llm.web.plots import hotspot_bars, paired_samples, script_of_plots

TEMPLATES = Path(__file__).parent / "templates"
HOTSPOTS_SHOWN = 24  # in the chart; the table lists all


def render_report(report: dict[str, Any]) -> str:
    """HTML of a report (the dictionary that `service.report.job_report` returns); everything user-supplied is escaped."""
    pages = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    pages.filters["ms"] = _milliseconds
    pages.filters["percent"] = _percent
    pages.filters["times"] = _times
    end_to_end = report.get("end_to_end") or {}
    return pages.get_template("report.html").render(
        report=report,
        plot_script=script_of_plots(),
        hotspot_plot=hotspot_bars(report["hotspots"][:HOTSPOTS_SHOWN]),
        paired_plot=paired_samples(end_to_end.get("baseline_ms") or [], end_to_end.get("patched_ms") or []),
    )


def write_report(report: dict[str, Any], folder: Path) -> None:
    """Write `report.json` and `report.html` into `folder`, each of them whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / "report.json", canonical_json(report) + "\n")
    write_atomic(folder / "report.html", render_report(report))


def _milliseconds(value: float | None) -> str:
    return "–" if value is None else f"{value:,.3f} ms" if value < 10 else f"{value:,.1f} ms"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"


def _times(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}×"
