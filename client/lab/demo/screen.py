"""The demo's display while it runs: a block redrawn in a terminal, plain lines elsewhere.

Pure layout plus one writer; all its data comes from the given view.
"""

import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from client.cli.terminal.output import printable
from client.control.snapshot import Snapshot, StageView
from client.views import plot
from client.views.span import Box, plain
from client.views.words import count
from client.views.words import duration as human_duration

CURVE_ROWS = 8
PLAIN_LINES = 20
"""Progress lines of a whole run when there is no terminal."""


@dataclass(frozen=True)
class View:
    """One moment of the demo."""

    now: Snapshot
    names: Mapping[str, str]
    """Peer id to the name of the volunteer."""
    dead: frozenset[str]
    """Peer ids that were killed."""
    losses: Sequence[float]
    elapsed_s: float


def layout(view: View, width: int) -> list[str]:
    """Return the block of lines for a terminal of ``width`` columns."""
    done = plot.bar(view.now.step / max(1, view.now.steps), min(60, width - 8))
    losses = plot.curve(list(enumerate(view.losses)), Box(min(66, width - 2), CURVE_ROWS))
    lines = [summary(view), f"      {done}", *(plain([line]) for line in losses)]
    lines += [stage_line(stage, view) for stage in view.now.stages]
    return [line[: width - 1] for line in lines]


def summary(view: View) -> str:
    """Return step, loss, speed and time in one line."""
    now = view.now
    loss = f"loss {now.loss:.4f}" if now.loss is not None else now.reason
    return (
        f"step  {now.step}/{now.steps}  {loss}  {count(now.tokens_per_s)}/s tokens  "
        f"{human_duration(view.elapsed_s)}"
    )


def stage_line(stage: StageView, view: View) -> str:
    """Return the holders of a stage."""
    holders = [
        f"{view.names.get(replica.peer, replica.peer[-6:])} "
        + ("killed" if replica.peer in view.dead else f"{replica.state} v{replica.version}")
        for replica in stage.replicas
    ]
    return f"stage {stage.stage}  {', '.join(holders) or 'nobody yet'}"


class Screen:
    """Writes views and messages to stderr, so that stdout stays free for the result."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._drawn = 0
        self._printed_share = -1
        self._printed_stages: list[str] = []

    def show(self, view: View) -> None:
        """Show the newest view."""
        if self._terminal:
            self._redraw(layout(view, shutil.get_terminal_size().columns))
        else:
            self._append(view)

    def say(self, text: str) -> None:
        """Print a permanent line; the block moves below it."""
        if self._drawn:
            self._write(f"\x1b[{self._drawn}A\x1b[J")
            self._drawn = 0
        self._write(f"{printable(text)}\n")

    def _redraw(self, lines: list[str]) -> None:
        up = f"\x1b[{self._drawn}A" if self._drawn else ""
        self._write(up + "\x1b[J" + "".join(f"{line}\n" for line in lines))
        self._drawn = len(lines)

    def _append(self, view: View) -> None:
        share = view.now.step * PLAIN_LINES // max(1, view.now.steps)
        holders = [stage_line(stage, view) for stage in view.now.stages]
        # Versions change with every step; print the map again only when a volunteer joins or
        # leaves.
        stages = [f"{stage.stage} {[r.peer for r in stage.replicas]}" for stage in view.now.stages]
        if share == self._printed_share and stages == self._printed_stages:
            return
        self._write(f"{summary(view)}\n")
        if stages != self._printed_stages:
            self._write("".join(f"      {line}\n" for line in holders))
        self._printed_share, self._printed_stages = share, stages

    def _write(self, text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()
