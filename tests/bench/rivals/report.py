"""The tables of a run: comparisons as ratios beside their goals, then every figure with its range.

Pure: records in, Markdown and SVG out. Ratios are medians over the rounds (in each of which the
contenders ran one after the other), with the range; figures are medians over all samples.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from client.lab.svg import Curve, Labels, curves_chart
from tests.bench.rivals import averaging, chain, codec, pipeline
from tests.bench.rivals.records import Ratio, Record, Records, cases, ratio, spread, values

HEAD = """\
# Beside others

Written by `make bench` (`python -m tests.bench.rivals`) from `rivals.jsonl`, which has all samples.
Both sides run on this machine in turns within one run, on loopback unless a rate is given. Ratios
say how many times as fast ours is: medians over rounds, in brackets the range over rounds. In the
tables below, medians over samples and the range.
"""
WORDS = {
    pipeline.PART: """\
Two stages, a process with one thread each, against one process with two threads and no wire. Same
model, cut, weights, microbatches, data, AdamW, clipping, learning rate. All of them flush at every
step. 1F1B sends fp32 over gloo, in the clear, and ends when a process dies. Ours sends S8 over
encrypted links, with a node process beside each worker, and goes on. All have the same settings of
the allocator. Bound: min(compute, link) of the efficiency model, from both stages timed at the same
moment; above 1 means that more ran beside that timing.""",
    averaging.PART: """\
Four peers, or as many as are named, each a process with one thread (and its node, or its daemon),
average as many fp32 numbers. Lines: each peer's own in a network laboratory; hivemind is told their
rates, as our leader is (but not with equal shards). From the moment at which the group stands until
the last peer has the result. `ours`: S8 both ways with error feedback, two-phase commit, every
payload hashed; the optimizer is left out. `ours and the optimizer`: the whole round, AdamW and the
new state's hash too; the microbatches before it are not counted, nor is hivemind's matchmaking.
cpu_s: CPU seconds of all processes a round (ours: with the microbatches). error: of the mean,
relative to its norm, in the worst round; far above its codec's, that round did not average (such a
launch is tried again now, with a note); what ours loses goes into the next round. identical:
whether all end with the same bits. attempts: of ours, in the round with most; all count.""",
    chain.PART: """\
Forward and backward through one transformer block (sequences x context x width) in another process.
Ours keeps the graph of the forward and sends four tensors as S8; hivemind's server computes the
forward again for the backward and is sent the input again, five tensors. Bound: the same block
computed on one thread in one place, with nothing sent: no wire can be faster.""",
    codec.PART: """\
One thread each, a boundary tensor of 8 x 256 x 1024; GB/s of fp32 numbers. `ours sealed` adds the
digest, for which hivemind has no counterpart. Errors relative to the norm; `elsewhere`: over the
channels other than the large one.""",
}


@dataclass(frozen=True)
class Comparison:
    """One line of the summary."""

    what: str
    found: Ratio
    goal: float | None = None

    @property
    def verdict(self) -> str:
        """Say whether the goal is met."""
        if self.goal is None:
            return ""
        return f"{self.goal:g}: {'met' if self.found.middle >= self.goal else 'missed'}"


def markdown(records: Records) -> str:
    """Return the whole report."""
    parts = [HEAD, summary(records)]
    for part in WORDS:
        if records.machine(part):
            name = part.capitalize() + ("" if records.complete(part) else " (incomplete)")
            parts += [f"## {name}\n", WORDS[part] + "\n", *_details(records, part)]
    return "\n".join(parts)


def comparisons(records: Records) -> Iterator[Comparison]:
    """Yield every comparison that there are figures for."""
    makers: dict[str, Callable[[str, list[Record]], Iterator[Comparison | None]]] = {
        pipeline.PART: _pipelines,
        averaging.PART: _averagings,
        chain.PART: _chains,
        codec.PART: _codecs,
    }
    for part, make in makers.items():
        for case, found in cases(records.of(part)):
            yield from (line for line in make(case, found) if line is not None)


def _pipelines(case: str, found: list[Record]) -> Iterator[Comparison | None]:
    goals = {pipeline.REFERENCE: 0.95, pipeline.TORCH: 1.25, pipeline.BOUND: None}
    for rival, goal in goals.items():
        yield _faster(f"pipeline: {rival}; {case}", found, pipeline.OURS, rival, goal)


def _averagings(case: str, found: list[Record]) -> Iterator[Comparison | None]:
    for rival in averaging.HIVEMIND:
        for ours in (averaging.OURS, averaging.WHOLE):
            goal = 3.0 if ours == averaging.OURS else None
            what = f"averaging {case}: {rival}" + ("" if goal else " (ours with the optimizer)")
            yield _faster(what, found, rival, ours, goal)  # seconds: the fewer, the better
    yield _faster(
        f"averaging {case}: {averaging.EQUAL}", found, averaging.EQUAL, averaging.OURS, None
    )


def _chains(case: str, found: list[Record]) -> Iterator[Comparison | None]:
    goals: dict[str, float | None] = {**dict.fromkeys(chain.HIVEMIND, 2.0), chain.BOUND: None}
    for rival, goal in goals.items():
        yield _faster(f"chain {case}: {rival}", found, chain.OURS, rival, goal)


def _codecs(case: str, found: list[Record]) -> Iterator[Comparison | None]:
    for rival in dict.fromkeys(record.who for record in found):
        if not rival.startswith("ours"):
            yield _faster(f"codec, {case}: {rival}", found, "ours", rival, None)


def _faster(
    what: str, found: list[Record], over: str, under: str, goal: float | None
) -> Comparison | None:
    of_both = ratio(found, over, under)
    return None if of_both is None else Comparison(what, of_both, goal)


def summary(records: Records) -> str:
    """Return the table of comparisons, and which parts are not all there."""
    rows = [[line.what, f"{line.found} x", line.verdict] for line in comparisons(records)]
    partly = [part for part in WORDS if records.machine(part) and not records.complete(part)]
    words = f"\nNot measured to the end: {', '.join(partly)}.\n" if partly else ""
    return _table(["ours against", "ratio", "goal"], rows) + words


def _details(records: Records, part: str) -> list[str]:
    found, machine = records.of(part), records.machine(part)
    extra = list(dict.fromkeys(name for r in found for name in r.more if name != "losses"))
    rows = []
    for case, of_case in cases(found):
        for who in dict.fromkeys(record.who for record in of_case):
            mine = [record for record in of_case if record.who == who]
            samples = values(of_case, who)
            row = [case, who, f"{spread(samples)} {mine[0].unit}", str(len(samples))]
            rows.append([*row, *(_merged(mine, name) for name in extra), _losses(mine)])
    heads = ["case", "who", "median (range)", "samples", *extra, "last loss"]
    if not any(row[-1] for row in rows):
        heads, rows = heads[:-1], [row[:-1] for row in rows]
    notes = "".join(f"- {' / '.join(words.split(chr(10)))}\n" for words in records.notes(part))
    return [_table(heads, rows), *([notes] if notes else []), _machine(machine, found)]


def _merged(records: Sequence[Record], name: str) -> str:
    """Return one column over the rounds: the median of numbers, all that was said of others."""
    said: list[Any] = [record.more[name] for record in records if name in record.more]
    if not said:
        return ""
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in said):
        return f"{statistics.median(said):.3g}"
    words = {True: "yes", False: "no"}
    return ", ".join(sorted({str(words.get(value, value)) for value in said}))


def _losses(records: Sequence[Record]) -> str:
    ends = {f"{record.more['losses'][-1]:.6f}" for record in records if "losses" in record.more}
    return ", ".join(sorted(ends))


def _machine(machine: dict[str, Any], found: Sequence[Record]) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in machine["versions"].items())
    loads = [record.load for record in found] or [machine["load_before"]]
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_bytes'] / 2**30:.0f} GiB, "
        f"{machine['system']}, Python {machine['python']}, {versions}. Load before "
        f"{machine['load_before']:g}, on the way {min(loads):g} to {max(loads):g}; "
        f"settings {machine['settings']}.\n"
    )


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def averaging_plot(records: Records) -> str:
    """Return seconds a round over millions of numbers, a curve per contender; empty for none."""
    on_loopback = [r for r in records.of(averaging.PART) if r.case in averaging.WIDTHS]
    found = list(cases(on_loopback))
    curves = []
    for who in (averaging.OURS, averaging.WHOLE, *averaging.HIVEMIND):
        points = [
            (float(case.rstrip("M")), statistics.median(samples))
            for case, of_case in found
            if (samples := values(of_case, who))
        ]
        if points:
            curves.append(Curve(points, who))
    labels = Labels(
        "Averaging among four peers",
        "one machine, loopback; medians",
        "millions of fp32 numbers",
        "seconds a round",
    )
    return curves_chart(curves, labels) if curves else ""
