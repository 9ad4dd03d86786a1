"""Measures audits by recomputing on this machine: their hits, misses and costs.

    python -m tests.bench.audits [--width 64 --layers 4] [--audits 20] [--budget 3] [--json]
    python -m tests.bench.audits --caught

Real replicas of one stage close real rounds in this process; one is audited by another. First
honest ones, over thread counts and codecs: how far they are from the tolerance. Then each lie, in
fp32 and in S8: how large it looks, and how many of its audits find it. Then how long a member
that leaves out a part of every step goes unnoticed, drawn as the budget says. At last what an audit
takes beside the work that it checks.

With ``--caught`` only this: by budget, how many members that cheat with a share of their
microbatches are out within 100 of these, as new ones and once proven, where every audit of a
contribution with a cheat in it finds it.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from model_zoo.specs.codec import AveragingCodec
from model_zoo.specs.model import ModelSpec
from protocol.audit.draw import PROVEN, drawn
from protocol.audit.record import SURELY_TIMES, TOLERANCE, Grade, Record
from protocol.ids import PeerId
from tests.support.audited_stage import LIES, Audited, AuditedStage

WARM_UP = 2
TRIALS = 1000
"""Simulated cheaters."""
MOST_STEPS = 100_000
WITHIN = 100
PER_STEP = (1, 4, 20, 100)


@dataclass(frozen=True)
class Row:
    """One line of the report."""

    what: str
    averaging: str
    deviation: float
    """Largest of an honest member, smallest of a liar: relative L2 beyond what the codec explains;
    of the contribution, or of a tensor for a neighbour."""
    along: float
    """The same along the recomputed sum, where a codec explains hardly anything."""
    explained: float
    """Largest share of a contribution that its codec explains."""
    found: str
    """In how many of its audits it lied for sure, and in how many it was in doubt."""

    def __str__(self) -> str:
        numbers = f"{self.deviation:9.1e} {self.along:9.1e} {self.explained:9.1e} {self.found:>9}"
        return f"{self.what:38} {self.averaging:5} {numbers}"


def model_of(width: int, layers: int) -> ModelSpec:
    """Return a model of two stages."""
    return ModelSpec("gpt", layers, width, 4, 4, 4 * width, 32, 256)


def honest(model: ModelSpec, count: int) -> list[Row]:
    """Audit honest members that compute with as many threads as their auditor, and with others."""
    rows = []
    codecs: Sequence[AveragingCodec] = ("fp32", "bf16", "s8")
    for averaging in codecs:
        for threads in (1, 2, 4):
            found: list[Audited] = []
            for stage in (0, 1):
                swarm = AuditedStage(stage, model=model, averaging=averaging, threads=(1, threads))
                swarm.train(WARM_UP)
                found += [swarm.audit() for _ in range(max(1, count // 2))]
            rows.append(_row(f"honest, threads 1 and {threads}", averaging, found, max))
    return rows


def liars(model: ModelSpec, count: int) -> list[Row]:
    """Audit each kind of liar, each time in a stage that was honest before."""
    rows = []
    codecs: Sequence[AveragingCodec] = ("fp32", "s8")
    for name, lie in LIES.items():
        for averaging in codecs:
            found = []
            for number in range(max(2, count // 4)):
                swarm = AuditedStage(number % 2, model=model, averaging=averaging)
                swarm.train(WARM_UP)
                found.append(swarm.audit(lie))
            rows.append(_row(name, averaging, found, min))
    return rows


def _row(what: str, averaging: str, found: list[Audited], pick: Callable[..., float]) -> Row:
    deviations = [max(each.boundary, each.compared.deviation) for each in found]
    alongs = [abs(each.compared.along) for each in found]
    grades = Counter(each.grade for each in found)
    explained = max(each.compared.explained for each in found)
    result = f"{grades[Grade.LIES]}, {grades[Grade.DOUBTFUL]} of {len(found)}"
    return Row(what, averaging, pick(deviations), pick(alongs), explained, result)


def steps_until_caught(budget: float, cheats: float) -> list[int]:
    """Return, in order, after how many steps simulated members are out that leave something out in
    a share of their steps."""
    taken = []
    for number in range(TRIALS):
        found, secret, step = Record(), number.to_bytes(32, "big"), 0
        while found.trusted() and step < MOST_STEPS:
            closed = step.to_bytes(32, "big")
            if drawn(secret, closed, 0, step, {PeerId("cheater"): found}, budget):
                lies = hash((number, step)) % 1000 < 1000 * cheats
                found.note(Grade.LIES if lies else Grade.AGREES)
            step += 1
        taken.append(step)
    return sorted(taken)


def caught_within(budget: float, cheats: float, per_step: int, *, proven: bool) -> float:
    """Return the share of simulated members that are out within 100 microbatches.

    Args:
        budget: share of contributions that is audited.
        cheats: share of its microbatches that a member does not compute.
        per_step: microbatches that it contributes to a step.
        proven: whether it was honest for long before.
    """
    out = 0
    for number in range(TRIALS):
        found, secret, chance = Record(), number.to_bytes(32, "big"), random.Random(number)
        for _ in range(PROVEN if proven else 0):
            found.note(Grade.AGREES)
        for step in range(WITHIN // per_step):
            lies = any(chance.random() < cheats for _ in range(per_step))
            closed = step.to_bytes(32, "big")
            if drawn(secret, closed, 0, step, {PeerId("cheater"): found}, budget):
                found.note(Grade.LIES if lies else Grade.AGREES)
        out += not found.trusted()
    return out / TRIALS


def print_caught() -> None:
    """Print the share that is out within 100 microbatches."""
    print("out within 100 microbatches (new, proven), by microbatches of the member in a step")
    print(f"{'budget':>7} {'cheats':>7}" + "".join(f"{n:>14}" for n in PER_STEP))
    for budget in (0.03, 0.05, 0.1, 0.2, 0.5, 1.0):
        for cheats in (0.05, 0.25, 1.0):
            cells = [
                f"{caught_within(budget, cheats, n, proven=False):.0%}, "
                f"{caught_within(budget, cheats, n, proven=True):.0%}"
                for n in PER_STEP
            ]
            print(f"{budget:7.0%} {cheats:7.0%}" + "".join(f"{cell:>14}" for cell in cells))


def cost(model: ModelSpec, count: int) -> float:
    """Return how long an audit takes, relative to the work that it checks."""
    ratios = []
    for number in range(max(4, count // 2)):
        swarm = AuditedStage(number % 2, (8, 8), model=model)
        swarm.train(WARM_UP)
        audited = swarm.audit()
        ratios.append(audited.seconds / swarm.worked_s)
    return statistics.median(ratios)


def main() -> None:
    """Read the arguments, measure, and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--audits", type=int, default=20, help="of each kind of member")
    parser.add_argument("--budget", type=float, default=3.0, help="percent of all contributions")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--caught", action="store_true", help="only who is caught how soon")
    arguments = parser.parse_args()
    if arguments.caught:
        print_caught()
        return
    model = model_of(arguments.width, arguments.layers)
    rows = [*honest(model, arguments.audits), *liars(model, arguments.audits)]
    caught = {
        share: steps_until_caught(arguments.budget / 100, share) for share in (1.0, 0.25, 0.05)
    }
    takes = cost(model, arguments.audits)
    if arguments.json:
        late = {f"{share:g}": _late(taken) for share, taken in caught.items()}
        print(json.dumps({"rows": [asdict(r) for r in rows], "steps_99": late, "cost": takes}))
        return
    print(f"tolerance {TOLERANCE:g}; more than {SURELY_TIMES * TOLERANCE:g} is a lie")
    print(f"{'':38} {'':5} {'deviation':>9} {'along':>9} {'explained':>9} lies, doubtful")
    print(*rows, sep="\n")
    for share, taken in caught.items():
        steps = f"half after {statistics.median(taken):g}, 99 % after {_late(taken)}"
        print(
            f"lies in {share:4.0%} of its steps, budget {arguments.budget:g} %: out: {steps} steps"
        )
    print(f"an audit takes {takes:.2f} times the work that it checks")


def _late(taken: list[int]) -> int:
    """Return after how many steps 99 % are out."""
    return taken[math.ceil(0.99 * len(taken)) - 1]


if __name__ == "__main__":
    main()
