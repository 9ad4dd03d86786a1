"""Audits of honest members, many: is anybody ever in doubt?

    python -m tests.bench.honest_audits [--seconds 200] [--out tests/bench/results]

Five real replicas of one stage close real rounds (``tests/support/audited_stage``), and each that
has contributed is audited by the four others, which use one copy of the version for all of them.
Three compute in this process, two in processes whose kernels lack AVX-512, or AVX as well, and so
round otherwise. Over and over in another setting: everybody's threads, the codecs between and
within stages, passes in fp32 and bf16, the first and the last stage, the shape of the model and the
shares of a step. Counted in each setting: audits, and their grades; the largest distances, as
shares of what is tolerated (1: doubtful; 10: a lie; a member is out after one lie, or three doubts
in 50 audits); and how many audits came how near. *Beyond 1, beyond 10*: the share of audits that
would get so far if the largest 1 % of a row went on like a power law (Hill's estimate).

Each call goes on where the last one ended. Writes ``honest_audits.jsonl``, a line for each setting
and version, and ``honest_audits.md``, their sums.

Two contributions were doubted by all four auditors in older code, both in stages of 3,000
parameters. Neither run can be repeated; what such stages do has two causes, which are mended. The
last bits, which other threads make, may tip how a boundary tensor is conditioned for S8: an auditor
now conditions ours as the member did there. The rounding of a step ten times as large comes back in
the next one: chance is allowed for twice as far. The older runs are counted apart.

Since then 38 audits of 85,912 were doubtful, all of passes in bf16: two between kernels alike, the
others between a processor that multiplies in bf16 itself and kernels without AVX-512. None of
passes in fp32 was. This is not mended. Strikes are not counted here: whether one auditor would have
found three doubts in 50 audits is not recorded.
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
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import msgspec

from client.compute.payload import CodecName
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.precision import Precision
from protocol.audit.record import STRIKES, TOLERANCE, TOLERANCE_COARSE, TOLERANCE_MIXED, WINDOW
from tests.bench.machines import commit, this_machine
from tests.support.audited_stage import Audited, AuditedStage
from tests.support.other_process import INSTRUCTIONS, OtherProcess

HERE = 3
"""Replicas in this process; the others are elsewhere, one in each of ``INSTRUCTIONS``."""
THREADS: Final = (1, 2, 3, 4)
SHARES: Final = (0, 1, 1, 2, 3)
"""What replicas' shares of a step are drawn from; one at least contributes."""
WARM_UP, STEPS = 2, 12
"""Steps of a setting before the audits, and with them."""
SHAPES: Final[dict[str, tuple[str, int, int, int]]] = {
    "width 8": ("gpt", 1, 8, 8),
    "width 16": ("gpt", 2, 16, 8),
    "width 64": ("gpt", 2, 64, 32),
    "llama, width 16": ("llama", 1, 16, 8),
}
"""Architecture, layers of each stage, width, context."""
BOUNDARY: Final[Sequence[CodecName]] = ("s8", "bf16", "fp32")
AVERAGING: Final[Sequence[CodecName]] = ("s8", "bf16", "fp32")
PRECISIONS: Final[Sequence[Precision]] = ("fp32", "bf16")
BINS: Final = (1e-6, 1e-4, 1e-2, 0.1, 0.25, 0.5, 1.0)
"""Upper ends, in shares of what is tolerated."""
A_DECADE = 20
"""Bins of the finer histogram."""
TAIL, LEAST_TAIL = 0.01, 30
"""Share of a row's audits from which its tail is estimated, and least number."""
ALLOWED = 100_000
BEFORE_THE_MENDS: Final = ("1ea2f55", "724a1ed")
"""Commits whose code had the faults that are named above."""


@dataclass
class Seen:
    """Audits of one setting."""

    shape: str
    averaging: str
    boundary: str
    threads: int
    """Of the audited member."""
    precision: Precision = "fp32"
    kernels: str = "alike"
    """Of the auditor and the member; if they are unlike, the lesser instructions of both."""
    audits: int = 0
    contributions: int = 0
    """That were audited, by one or several."""
    grades: dict[str, int] = field(default_factory=dict)
    nearest: float = 0.0
    """Largest distance, of a contribution or a boundary tensor, in tolerances."""
    along: float = 0.0
    """Largest distance along the recomputed sum, in its tolerances."""
    near: list[int] = field(default_factory=lambda: [0] * (len(BINS) + 1))
    """Audits by the larger of the two, in ``BINS``."""
    fine: dict[int, int] = field(default_factory=dict)
    """The same by decade and its twentieth; not below 1e-9, nor in lines of older versions."""
    machine: str = ""
    version: str = ""

    @property
    def lies(self) -> int:
        """How many found a lie where nobody lies."""
        return self.grades.get("LIES", 0)

    def note(self, found: Audited) -> None:
        """Count an audit."""
        compared = found.compared
        usual = TOLERANCE if self.precision == "fp32" else TOLERANCE_MIXED
        distance = max(found.boundary, compared.deviation) / usual
        tolerated = usual if self.averaging == "fp32" else max(usual, TOLERANCE_COARSE)
        along = abs(compared.along) / tolerated
        self.audits += 1
        grade = found.grade.name if found.grade else "VOID"
        self.grades[grade] = self.grades.get(grade, 0) + 1
        self.nearest, self.along = max(self.nearest, distance), max(self.along, along)
        larger = max(distance, along)
        self.near[next((i for i, end in enumerate(BINS) if larger <= end), len(BINS))] += 1
        if larger > 1e-9:
            place = math.floor(A_DECADE * math.log10(larger))
            self.fine[place] = self.fine.get(place, 0) + 1

    def beyond(self, distance: float) -> float | None:
        """Estimate the share of audits further than a ``distance`` (Hill, Annals of Statistics
        3(5), 1975); None: too few to say."""
        tail, decades, start = 0, 0.0, 0.0
        if TAIL * self.audits < LEAST_TAIL or sum(self.fine.values()) < TAIL * self.audits:
            return None
        for place in sorted(self.fine, reverse=True):
            tail, start = tail + self.fine[place], place / A_DECADE
            decades += self.fine[place] * (place + 0.5) / A_DECADE
            if tail >= TAIL * self.audits:
                break
        slope = 1 / (math.log(10) * (decades / tail - start))
        return tail / self.audits * (10**start / distance) ** slope


Setting = tuple[str, CodecName, CodecName, Precision]
"""Shape, codecs within and between stages, precision."""


def settings() -> Iterator[Setting]:
    """Return the settings in turn, for ever, in a random order each time."""
    each = list(itertools.product(SHAPES, AVERAGING, BOUNDARY, PRECISIONS))
    for turn in itertools.count():
        random.Random(f"{time.time_ns()}/{turn}").shuffle(each)
        yield from each


def measure(setting: Setting, seed: int, elsewhere: Sequence[OtherProcess]) -> list[Seen]:
    """Audit all members for some steps of a setting."""
    shape, averaging, boundary, precision = setting
    architecture, layers, width, context = SHAPES[shape]
    draw, count = random.Random(seed), HERE + len(elsewhere)
    shares = [draw.choice(SHARES) for _ in range(count)]
    shares[draw.randrange(count)] += 1
    stage = AuditedStage(
        draw.randrange(2),
        shares,
        model=ModelSpec(architecture, 2 * layers, width, 2, 2, 4 * width, context, 256),
        sequences=draw.choice((1, 2)),
        boundary=boundary,
        averaging=averaging,
        precision=precision,
        threads=[draw.choice(THREADS) for _ in range(count)],
        elsewhere=elsewhere,
        first=draw.randrange(1 << 20),
    )
    kernels = [*("" for _ in range(HERE)), *(one.instructions for one in elsewhere)]
    found: dict[tuple[int, str], Seen] = {}
    stage.train(WARM_UP)
    for _ in range(STEPS):
        counted = set[int]()
        for auditor, member, result in stage.audit_everyone():
            one, other = kernels[auditor], kernels[member]
            how = stage.threads[member], "alike" if one == other else max(one, other)
            new = Seen(shape, averaging, boundary, how[0], precision, how[1])
            seen = found.setdefault(how, new)
            seen.contributions += member not in counted
            counted.add(member)
            seen.note(result)
    return list(found.values())


# --- page -----------------------------------------------------------------------------------


def merged(lines: Sequence[Seen]) -> Seen:
    """Return the sums of several."""
    whole = Seen("", "", "", 0)
    for one in lines:
        whole.audits += one.audits
        whole.grades = dict(Counter(whole.grades) + Counter(one.grades))
        whole.contributions += one.contributions
        whole.fine = dict(Counter(whole.fine) + Counter(one.fine))
        whole.nearest = max(whole.nearest, one.nearest)
        whole.along = max(whole.along, one.along)
        whole.near = [a + b for a, b in zip(whole.near, one.near, strict=True)]
    return whole


def summed(lines: Sequence[Seen]) -> list[Seen]:
    """Return one line for each setting, machine and version."""
    groups: dict[tuple[str | int, ...], list[Seen]] = defaultdict(list)
    for one in lines:
        setting = (one.shape, one.averaging, one.boundary, one.threads)
        groups[*setting, one.precision, one.kernels, one.machine, one.version].append(one)
    return [replace(of[0], **_sums(merged(of))) for of in groups.values()]


def _sums(whole: Seen) -> dict[str, Any]:
    names = ("audits", "contributions", "grades", "nearest", "along", "near", "fine")
    return {name: getattr(whole, name) for name in names}


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
        groups["passes in", one.precision].append(one)
        groups["kernels", one.kernels].append(one)
    ends = ["0", *(f"{end:g}" for end in BINS), "more"]
    spans = [f"{a} to {b}" for a, b in itertools.pairwise(ends)]
    head = ["", "audits", "agree", "doubtful", "lies", "others", "nearest", "along"]
    head += ["beyond 1", "beyond 10", *spans]
    table = [head, ["---", *["---:"] * (len(head) - 1)], _cells("**all**", lines)]
    table += [_cells(" ".join(key), groups[key]) for key in sorted(groups)]
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
        f"{__doc__}\n**{whole.audits:,} audits, {bad} of which do not agree.**{bound} Audits of "
        f"one contribution are not independent: {whole.contributions:,} contributions since each "
        "is audited by four. Before the "
        f"mends: {older.audits:,}, {_doubts(older)} doubtful and {older.lies} lies. "
        f"{of_all}{_safety(before)} *Nearest*: "
        "the largest distance of a contribution, or of a tensor that was sent, in tolerances; "
        "*along*: the same along the recomputed sum; then the audits by the larger of the two.\n\n"
        f"Machine: {machines}; commit {versions}. Kernels without AVX-512 or AVX are "
        "those of another machine on this one; MKL's products are the same everywhere. Not tried: "
        "processors of another maker, GPUs, and stages of more than some 100,000 parameters.\n\n"
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


def _cells(name: str, lines: Sequence[Seen]) -> list[str]:
    seen, finer = merged(lines), merged([one for one in lines if one.contributions])
    known = [seen.grades.get(grade, 0) for grade in ("AGREES", "DOUBTFUL", "LIES")]
    return [
        name,
        f"{seen.audits:,}",
        *(f"{count:,}" for count in known),
        f"{seen.audits - sum(known):,}",
        f"{seen.nearest:.1e}",
        f"{seen.along:.2f}",
        *("-" if (share := finer.beyond(far)) is None else f"{share:.0e}" for far in (1, 10)),
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
    deadline, lines = time.monotonic() + asked.seconds, read(file)
    done = sum(one.audits for one in lines)
    elsewhere = [OtherProcess(each) for each in INSTRUCTIONS]
    machine, version = this_machine(), commit()
    for number, setting in enumerate(settings()):
        if time.monotonic() > deadline or done >= ALLOWED:
            break
        found = measure(setting, time.time_ns() + number, elsewhere)
        done += sum(one.audits for one in found)
        for one in found:
            one.machine, one.version = machine, version
        lines = summed([*lines, *found])
        written = b"".join(msgspec.json.encode(one) + b"\n" for one in lines)
        file.with_suffix(".new").write_bytes(written)
        file.with_suffix(".new").replace(file)
    (asked.out / "honest_audits.md").write_text(markdown(read(file)))
    print(f"{done:,} audits")


if __name__ == "__main__":
    main()
