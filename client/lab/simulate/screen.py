"""The display of ``volunteer simulate``: a bar on stderr while it works, then a table."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Self

from client.views.words import size as human_bytes

if TYPE_CHECKING:
    from client.lab.simulate.market.score import Figures
    from client.lab.simulate.market.setting import Setting

BAR_WIDTH = 30
HEADINGS = ("policy", "share", "of LP", "moves", "re-match", "p95", "empty", "messages", "wall")


class Bar:
    """A line that is redrawn in a terminal; nothing elsewhere."""

    def __init__(self, policies: int) -> None:
        self._terminal = sys.stderr.isatty()
        self._policies = policies
        self._seen: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def show(self, what: str, share: float) -> None:
        """Draw the progress of ``what``."""
        if what not in self._seen:
            self._seen.append(what)
        if self._terminal:
            text = progress_text(what, share, len(self._seen) - 1, self._policies)
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def progress_text(what: str, share: float, number: int, policies: int) -> str:
    """Return one line: a bar, the share, the simulated policy; number 0 stands for the bounds."""
    filled = round(BAR_WIDTH * min(max(share, 0.0), 1.0))
    place = f" ({number} of {policies})" if number else ""
    return f"{'█' * filled}{'░' * (BAR_WIDTH - filled)} {share:4.0%} {what}{place}"


def report(setting: Setting, found: list[Figures]) -> str:
    """Return the table for people."""
    rows = [HEADINGS, *(_row(figures) for figures in found)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    lines = [
        "  ".join(
            text.ljust(width) if column == 0 else text.rjust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    head = (
        f"{setting.volunteers} volunteers, {setting.stages} stages, {setting.churn:.0%} churn per "
        f"hour, {setting.hours:g} h, seed {setting.seed}"
    )
    return "\n".join([head, "", *(line.rstrip() for line in lines), "", LEGEND])


LEGEND = """\
share: throughput over the bound for one stage a volunteer; of LP: over that for time shared freely
moves, messages (bytes with records): per volunteer and hour
re-match: from a loss that is felt until throughput is back
empty: time in which a stage had nobody"""


def _row(figures: Figures) -> tuple[str, ...]:
    talk = figures.talk
    said = f"{talk.letters:.0f} ({human_bytes(talk.bytes)})" if talk else "-"
    return (
        figures.policy,
        f"{figures.share:.3f}",
        f"{figures.share_lp:.3f}",
        f"{figures.moves:.2f}",
        _seconds(figures.rematch_median_s),
        _seconds(figures.rematch_p95_s),
        f"{figures.empty:.1%}",
        said,
        f"{figures.wall_s:.1f} s",
    )


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f} s"
