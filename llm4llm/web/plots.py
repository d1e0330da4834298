"""Plots of a report as HTML fragments; the plotting script comes from the package itself, so that a page works offline."""

from statistics import median
from typing import Any

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

COLOURS = {"accepted": "#1a7f37", "rejected": "#b35900", "skipped": "#8c959f"}


def script_of_plots() -> str:
    """JavaScript that every fragment needs once per page."""
    return str(get_plotlyjs())


def _fragment(figure: Any, height: int, name: str) -> str:
    figure.update_layout(
        height=height,
        margin={"l": 10, "r": 10, "t": 10, "b": 40},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"family": "system-ui, sans-serif", "color": "#57606a"},
    )
    return str(figure.to_html(full_html=False, include_plotlyjs=False, div_id=name, config={"displaylogo": False, "responsive": True}))


def hotspot_bars(hotspots: list[dict[str, Any]]) -> str:
    """Inclusive share of the workload's time per module family and phase, coloured by what became of it; empty without hotspots."""
    if not hotspots:
        return ""
    shown = list(reversed(hotspots))
    figure = go.Figure(
        go.Bar(
            x=[100 * spot["share"] for spot in shown],
            # the running number keeps families apart that share class and phase
            y=[
                f"{len(shown) - index}. {_plain(spot['module_class'].rsplit('.', 1)[-1])} · {spot['phase']}"
                for index, spot in enumerate(shown)
            ],
            orientation="h",
            marker_color=[COLOURS[spot["status"]] for spot in shown],
            customdata=[[_plain(spot["status"]), _plain(str(spot["reason"]))] for spot in shown],
            hovertemplate="%{y}: %{x:.1f} %<br>%{customdata[0]}: %{customdata[1]}<extra></extra>",
        )
    )
    figure.update_xaxes(title="share of the workload's time, nested families overlap (%)", gridcolor="#d0d7de")
    return _fragment(figure, 120 + 24 * len(shown), "plot-hotspots")


def paired_samples(baseline_ms: list[float], patched_ms: list[float]) -> str:
    """Both variants over the pairs in the order in which they were taken; empty without pairs."""
    if not baseline_ms or not patched_ms:
        return ""
    numbers = list(range(1, len(baseline_ms) + 1))
    figure = go.Figure()
    for name, samples, colour in (("unpatched", baseline_ms, "#0969da"), ("patched", patched_ms, COLOURS["accepted"])):
        figure.add_trace(go.Scatter(x=numbers, y=samples, mode="markers+lines", name=name, line={"color": colour, "width": 1}))
        figure.add_hline(y=median(samples), line_dash="dot", line_color=colour)
    figure.update_xaxes(title="pair", dtick=max(1, len(numbers) // 20), gridcolor="#d0d7de")
    figure.update_yaxes(title="one pass over the workload (ms)", rangemode="tozero", gridcolor="#d0d7de")
    return _fragment(figure, 340, "plot-pairs")


def _plain(text: str) -> str:
    """Text for a plot label: the plotting script reads some tags, so angle brackets must not reach it as such."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
