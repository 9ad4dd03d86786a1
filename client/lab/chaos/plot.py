"""``chaos.svg``: the losses of both runs by step, and their tokens over time. Pure."""

from __future__ import annotations

import re

from client.lab.chaos.report import Report
from client.lab.svg import HEIGHT, LEGEND, WIDTH, Curve, Event, Labels, curves_chart


def plot(report: Report) -> str:
    """Return both charts as one SVG, every fault marked by its number."""
    done = [fault for fault in report.faults if fault.at_s is not None]
    in_time = [Event(fault.at_s or 0.0, str(fault.number + 1)) for fault in done]
    by_step = [Event(float(f.step), str(f.number + 1)) for f in done if f.step is not None]
    asked = report.settings
    what = f"{asked.volunteers} volunteers, {asked.stages} stages, seed {asked.seed}"
    losses = curves_chart(
        [
            Curve([(float(s), loss) for s, loss in report.reference.losses], "without faults"),
            Curve([(float(s), loss) for s, loss in report.chaos.losses], "with faults"),
        ],
        Labels("Training loss", what, "step", "loss (nats per byte)"),
        events=by_step,
    )
    tokens = curves_chart(
        [
            Curve([(t, float(n)) for t, n in report.reference.tokens], "without faults"),
            Curve([(t, float(n)) for t, n in report.chaos.tokens], "with faults"),
        ],
        Labels("Tokens trained on", "numbers: the faults, as in the report", "seconds", "tokens"),
        events=in_time,
    )
    return stack([losses, tokens])


def stack(charts: list[str]) -> str:
    """Return charts of equal size one below the other."""
    width, height = WIDTH + LEGEND, HEIGHT * len(charts)
    placed = [
        re.sub(r"^<svg ", f'<svg y="{HEIGHT * index}" ', chart.strip(), count=1)
        for index, chart in enumerate(charts)
    ]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}">'
    )
    return "\n".join([head, *placed, "</svg>", ""])
