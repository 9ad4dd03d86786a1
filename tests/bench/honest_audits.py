"""Audits of honest members, many: is anybody ever in doubt?

    python -m tests.bench.honest_audits [--seconds 200] [--out tests/bench/results]

Real replicas of one stage close real rounds in this process (``tests/support/audited_stage``); one
is audited by four others, which compute with one, two, three and four threads. Over and over in
another setting: the member's threads, the codecs between and within stages, the first and the last
stage, the shape of the model and the member's share of a step. Counted in each setting: audits, and
their grades; the largest distances, as shares of what is tolerated (1: doubtful; 10: a lie; a
member is out after one lie, or three doubts in 50 audits); and how many audits came how near.

Each call goes on where the last one ended. Writes ``honest_audits.jsonl``, a line for each setting
and call, and ``honest_audits.md``, their sums.

Two contributions were doubted by all four auditors in older code, both in stages of 3,000
parameters. Neither run can be repeated; what such stages do has two causes, which are mended. The
last bits, which other threads make, may tip how a boundary tensor is conditioned for S8: an auditor
now conditions ours as the member did there. The rounding of a step ten times as large comes back in
the next one: chance is allowed for twice as far. The older runs are counted apart.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import random
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from client.compute.payload import CodecName
from model_zoo.specs.model import ModelSpec
from protocol.audit.record import STRIKES, TOLERANCE, TOLERANCE_COARSE, WINDOW
from tests.bench.machines import commit, this_machine
from tests.support.audited_stage import Audited, AuditedStage

AUDITORS: Final = (1, 2, 3, 4)
"""Places of the auditors; each computes with as many threads."""
WARM_UP, STEPS = 2, 25
"""Steps of a setting before the audits, and with them."""
SHAPES: Final = {
    "width 8": (1, 8, 8),
    "width 16": (2, 16, 8),
    "width 64": (2, 64, 32),
}
"""Layers of each stage, width, context."""
BOUNDARY: Final[Sequence[CodecName]] = ("s8", "bf16", "fp32")
AVERAGING: Final[Sequence[CodecName]] = ("s8", "bf16", "fp32")
BINS: Final = (1e-6, 1e-4, 1e-2, 0.1, 0.25, 0.5, 1.0)
"""Upper ends, in shares of what is tolerated."""
ALLOWED = 100_000
BEFORE_THE_MENDS: Final = ("1ea2f55", "724a1ed")
"""Commits whose code had the faults that are named above."""


@dataclass
class Seen:
    """Audits of one setting, in one call."""

    shape: str
    averaging: str
    boundary: str
    threads: int
    """Of the audited member."""
    audits: int = 0
    grades: dict[str, int] = field(default_factory=dict)
    nearest: float = 0.0
    """Largest distance, of a contribution or a boundary tensor, in tolerances."""
    along: float = 0.0
    """Largest distance along the recomputed sum, in its tolerances."""
    near: list[int] = field(default_factory=lambda: [0] * (len(BINS) + 1))
    """Audits by the larger of the two, in ``BINS``."""
    machine: str = ""
    version: str = ""

    @property
    def lies(self) -> int:
        """How many found a lie where nobody lies."""
        return self.grades.get("LIES", 0)

    def note(self, found: Audited) -> None:
        """Count an audit."""
        compared = found.compared
        distance = max(found.boundary, compared.deviation) / TOLERANCE
        tolerated = TOLERANCE if self.averaging == "fp32" else TOLERANCE_COARSE
        along = abs(compared.along) / tolerated
        self.audits += 1
        grade = found.grade.name if found.grade else "VOID"
        self.grades[grade] = self.grades.get(grade, 0) + 1
        self.nearest, self.along = max(self.nearest, distance), max(self.along, along)
        larger = max(distance, along)
        self.near[next((i for i, end in enumerate(BINS) if larger <= end), len(BINS))] += 1


def settings() -> Iterator[Seen]:
    """Return the settings in turn, for ever, in a random order each time."""
    each = list(itertools.product(SHAPES, AVERAGING, BOUNDARY, (1, 2, 3, 4)))
    for turn in itertools.count():
        random.Random(f"{time.time_ns()}/{turn}").shuffle(each)
        for setting in each:
            yield Seen(*setting, machine=this_machine(), version=commit())


def measure(seen: Seen, seed: int) -> Seen:
    """Audit a setting for some steps."""
    layers, width, context = SHAPES[seen.shape]
    draw = random.Random(seed)
    stage = AuditedStage(
        draw.randrange(2),
        (draw.choice((1, 2, 3)), *(draw.choice((0, 1)) for _ in AUDITORS)),
        model=ModelSpec("gpt", 2 * layers, width, 2, 2, 4 * width, context, 256),
        sequences=draw.choice((1, 2)),
        boundary=seen.boundary,  # type: ignore[arg-type]
        averaging=seen.averaging,  # type: ignore[arg-type]
        threads=(seen.threads, *AUDITORS),
        first=draw.randrange(1 << 20),
    )
    stage.train(WARM_UP)
    for _ in range(STEPS):
        shown = stage.begin(auditors=AUDITORS)
        for auditor in AUDITORS:
            seen.note(stage.finish(shown, auditor))
    return seen


# --- page -----------------------------------------------------------------------------------


def merged(lines: Sequence[Seen]) -> Seen:
    """Return the sums of several."""
    whole = Seen("", "", "", 0)
    for one in lines:
        whole.audits += one.audits
        whole.grades = dict(Counter(whole.grades) + Counter(one.grades))
        whole.nearest = max(whole.nearest, one.nearest)
        whole.along = max(whole.along, one.along)
        whole.near = [a + b for a, b in zip(whole.near, one.near, strict=True)]
    return whole


def markdown(lines: Sequence[Seen]) -> str:
    """Return the page."""
    before = [one for one in lines if one.version in BEFORE_THE_MENDS]
    older = merged(before)
    lines = [one for one in lines if one.version not in BEFORE_THE_MENDS]
    whole = merged(lines)
    groups: dict[tuple[str, str], list[Seen]] = defaultdict(list)
    for one in lines:
        groups["contributions in", one.averaging].append(one)
        groups["boundaries in", one.boundary].append(one)
        groups["member's threads", str(one.threads)].append(one)
        groups["shape", one.shape].append(one)
    ends = ["0", *(f"{end:g}" for end in BINS), "more"]
    spans = [f"{a} to {b}" for a, b in itertools.pairwise(ends)]
    head = ["", "audits", "agree", "doubtful", "lies", "others", "nearest", "along", *spans]
    table = [head, ["---", *["---:"] * (len(head) - 1)], _cells("**all**", whole)]
    table += [_cells(" ".join(key), merged(groups[key])) for key in sorted(groups)]
    bad = whole.audits - whole.grades.get("AGREES", 0)
    bound = (
        ""
        if bad or not whole.audits
        else f" With 95 % certainty fewer than {3 / whole.audits:.1e} of all would."
    )
    every, told = whole.audits + older.audits, whole.lies + older.lies
    of_all = (
        ""
        if told or not every
        else f"Of all {every:,} none found a lie: with 95 % certainty {3 / every:.1e} at most do. "
    )
    machines = ", ".join(dict.fromkeys(one.machine for one in lines))
    versions = ", ".join(dict.fromkeys(one.version for one in lines))
    return (
        "# Audits of honest members\n\nWritten by `python -m tests.bench.honest_audits`. "
        f"{__doc__}\n**{whole.audits:,} audits, {bad} of which do not agree.**{bound} Before the "
        f"mends: {older.audits:,}, {_doubts(older)} doubtful and {older.lies} lies. "
        f"{of_all}{_safety(before)} *Nearest*: "
        "the largest distance of a contribution, or of a tensor that was sent, in tolerances; "
        "*along*: the same along the recomputed sum; then the audits by the larger of the two.\n\n"
        f"Machine: {machines}; commit {versions}. Hardware of another kind was not tried, and the "
        "client computes in fp32 only.\n\n"
        + "\n".join(f"| {' | '.join(row)} |" for row in table)
        + "\n"
    )


def _doubts(seen: Seen) -> int:
    return seen.grades.get("DOUBTFUL", 0)


def charged_every(doubted: float) -> float:
    """Return after how many audits of one auditor an honest member has had as many doubts in a
    window as are a charge, if each audit is doubted with a probability, independently: a window
    ends with its last doubt, and the others are among those before it."""
    others = math.comb(WINDOW - 1, STRIKES - 1) * doubted ** (STRIKES - 1)
    return 1 / (doubted * others) if doubted else math.inf


def _safety(before: Sequence[Seen]) -> str:
    """Say what the rule of three doubts in 50 audits makes of so many."""
    groups: dict[tuple[str, str], list[Seen]] = defaultdict(list)
    for one in before:
        groups[one.shape, one.averaging].append(one)
    shares = {key: _doubts(merged(g)) / merged(g).audits for key, g in groups.items()}
    if not any(shares.values()):
        return ""
    share = _doubts(merged(before)) / merged(before).audits
    shape, averaging = max(shares, key=lambda key: shares[key])
    worst = shares[shape, averaging]
    return (
        f"At that rate, {share:.1e}, an auditor would charge an honest member once in "
        f"{charged_every(share):,.0f} audits; in the worst setting ({shape}, contributions in "
        f"{averaging}), {worst:.1e}, once in {charged_every(worst):,.0f}. All auditors doubted the "
        "same contributions, so that a majority is no further guard: it was not safe there."
    )


def _cells(name: str, seen: Seen) -> list[str]:
    known = [seen.grades.get(grade, 0) for grade in ("AGREES", "DOUBTFUL", "LIES")]
    return [
        name,
        f"{seen.audits:,}",
        *(f"{count:,}" for count in known),
        f"{seen.audits - sum(known):,}",
        f"{seen.nearest:.1e}",
        f"{seen.along:.2f}",
        *(f"{count:,}" for count in seen.near),
    ]


def read(path: Path) -> list[Seen]:
    """Return all lines."""
    lines = path.read_bytes().splitlines() if path.exists() else []
    return [msgspec.json.decode(line, type=Seen) for line in lines]


def main() -> None:
    """Measure for a while, and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=200.0)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("results"))
    asked = parser.parse_args()
    if os.environ.get("OMP_WAIT_POLICY") != "passive":  # as workers are started; read by torch once
        os.execve(
            sys.executable,
            [sys.executable, "-m", "tests.bench.honest_audits", *sys.argv[1:]],
            {**os.environ, "OMP_WAIT_POLICY": "passive"},
        )
    file = asked.out / "honest_audits.jsonl"
    deadline, done = time.monotonic() + asked.seconds, sum(one.audits for one in read(file))
    for number, setting in enumerate(settings()):
        if time.monotonic() > deadline or done >= ALLOWED:
            break
        seen = measure(setting, time.time_ns() + number)
        done += seen.audits
        with file.open("ab") as out:
            out.write(msgspec.json.encode(seen) + b"\n")
    (asked.out / "honest_audits.md").write_text(markdown(read(file)))
    print(f"{done:,} audits")


if __name__ == "__main__":
    main()
