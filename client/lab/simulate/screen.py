"""The display of ``volunteer simulate``: a bar on stderr while it works, then a table."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Self

from client.views.plot import bar
from client.views.text import aligned
from client.views.words import size as human_bytes

if TYPE_CHECKING:
    from client.lab.simulate.market.score import Figures
    from client.lab.simulate.market.setting import Setting

BAR_WIDTH = 30
HEADINGS = ("policy", "share", "moves", "re-match", "p95", "empty", "messages")


class Bar:
    """A line that is redrawn in a terminal; nothing elsewhere."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._draw("")

    def show(self, what: str, share: float) -> None:
        """Draw the progress of ``what``."""
        self._draw(f"{bar(share, BAR_WIDTH)} {share:4.0%} {what}")

    def _draw(self, text: str) -> None:
        if self._terminal:
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def report(setting: Setting, found: list[Figures]) -> str:
    """Return the table for people."""
    head = (
        f"{setting.volunteers} volunteers, {setting.stages} stages, {setting.churn:.0%} churn per "
        f"hour, {setting.hours:g} h, seed {setting.seed}"
    )
    return "\n".join([head, "", *aligned(HEADINGS, [*map(_row, found)]), "", LEGEND])


LEGEND = """\
share: throughput over the bound for one stage a volunteer
moves, messages (bytes with records): per volunteer and hour
re-match: from a loss that is felt until throughput is back
empty: time in which a stage had nobody"""


def _row(figures: Figures) -> tuple[str, ...]:
    talk = figures.talk
    said = f"{talk.letters:.0f} ({human_bytes(talk.bytes)})" if talk else "-"
    return (
        figures.policy,
        f"{figures.share:.3f}",
        f"{figures.moves:.2f}",
        _seconds(figures.rematch_median_s),
        _seconds(figures.rematch_p95_s),
        f"{figures.empty:.1%}",
        said,
    )


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f} s"
