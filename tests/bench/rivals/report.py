"""The comparison in numbers and in Markdown: ratios beside their goals, then every contender.

Contenders run one after the other in each round, so a ratio is taken round by round.
"""

import statistics
from collections.abc import Iterator, Sequence

from msgspec import Struct

from tests.bench.machines import commit, this_machine
from tests.bench.rivals.pipeline import OURS, REFERENCE, TORCH, Turn

GOALS = {REFERENCE: 0.95, TORCH: 1.25}
HEAD = """\
# Beside others

Written by `make bench` (`python -m tests.bench.rivals`); `rivals.jsonl` has all samples.

Two stages, a process with one thread each, against one process with two threads and no wire. Same
model, cut, weights, microbatches, data, AdamW, clipping, learning rate. All of them flush at every
step. 1F1B sends fp32 over gloo, in the clear, and ends when a process dies. Ours sends S8 over
encrypted links, with a node process beside each worker, and goes on. All have the same settings of
the allocator.
"""


class Ratio(Struct, frozen=True):
    """How many times as fast as a rival we are: median over the rounds, and the range."""

    rival: str
    middle: float
    least: float
    most: float
    rounds: int

    @property
    def verdict(self) -> str:
        """Say whether the goal is met."""
        goal = GOALS[self.rival]
        return f"{goal:g}: {'met' if self.middle >= goal else 'missed'}"


def ratios(turns: Sequence[Turn]) -> Iterator[Ratio]:
    """Yield ours over each rival that there are figures of."""
    medians = {(turn.who, turn.round): statistics.median(turn.tokens_per_s) for turn in turns}
    for rival in GOALS:
        rounds = [number for who, number in medians if who == rival and (OURS, number) in medians]
        found = [medians[OURS, number] / medians[rival, number] for number in rounds]
        if found:
            yield Ratio(rival, statistics.median(found), min(found), max(found), len(found))


def summary(turns: Sequence[Turn]) -> str:
    """Return the table of ratios."""
    rows = [
        f"| {one.rival} | {one.middle:.2f} ({one.least:.2f} to {one.most:.2f}) x | {one.verdict} |"
        for one in ratios(turns)
    ]
    return "\n".join(["| ours against | ratio | goal |", "| --- | --- | --- |", *rows, ""])


def markdown(work: str, turns: Sequence[Turn]) -> str:
    """Return the whole report."""
    rows = []
    for who in dict.fromkeys(turn.who for turn in turns):
        mine = [turn for turn in turns if turn.who == who]
        rates = [rate for turn in mine for rate in turn.tokens_per_s]
        losses = ", ".join(sorted({f"{turn.losses[-1]:.6f}" for turn in mine if turn.losses}))
        spread = f"{statistics.median(rates):.0f} ({min(rates):.0f} to {max(rates):.0f})"
        rows.append(f"| {who} | {spread} | {len(rates)} | {losses} |")
    heads = ["| who | tokens/s | samples | last loss |", "| --- | --- | --- | --- |"]
    foot = f"{work}; {this_machine()}; `{commit()}`.\n"
    return "\n".join([HEAD, summary(turns), *heads, *rows, "", foot])
