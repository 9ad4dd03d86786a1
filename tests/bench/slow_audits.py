"""After how many steps three liars of eight are out, where audits last longer than steps.

    python -m tests.bench.slow_audits [--trials 100] [--budget 3]

Simulated: the members of a stage draw by the real rule (``protocol/audit/draw.py``), and an audit
lasts so many steps. It occupies its auditor; who is free keeps the version and waits, as a judge,
and audits it if the auditor has found fault. A draw of one's own comes before waiting. Every
audit of a liar finds it out; liars audit, but charge nobody. The first row of a pair is the rule
without suspicion: nobody looks at a member because another one has charged it.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from protocol.audit.draw import drawn
from protocol.audit.record import Grade, Record
from protocol.ids import PeerId

MEMBERS: Final = tuple(PeerId(name) for name in "abcdefgh")
LIARS: Final = frozenset(MEMBERS[5:])
LASTS: Final = (1, 3, 10, 20)
STEPS: Final = 400


@dataclass
class Case:
    """What a member audits, or keeps a version for; ``ends``: None while a judge is not called."""

    subject: PeerId
    auditor: PeerId
    ends: int | None


@dataclass
class Stage:
    """The members of the stage that are still in, and what they do."""

    seed: int
    lasts: int
    suspects: bool
    budget: float
    inside: list[PeerId] = field(default_factory=lambda: list(MEMBERS))
    cases: dict[PeerId, Case] = field(default_factory=dict)
    records: dict[tuple[PeerId, PeerId], Record] = field(default_factory=dict)
    charges: dict[PeerId, set[PeerId]] = field(default_factory=dict)

    def run(self) -> Iterator[int]:
        """Yield the step in which each liar is out."""
        for step in range(STEPS):
            for member in list(self.inside):
                case = self.cases.get(member)
                if case is not None and case.ends == step:
                    self._judge(member, case, step)
            for liar in [m for m in self.inside if self._is_out(m)]:
                self.inside.remove(liar)
                self.cases = {
                    m: c for m, c in self.cases.items() if m != liar and c.subject != liar
                }
                yield step
            self._draw(step)

    def _is_out(self, member: PeerId) -> bool:
        return 2 * len(self.charges.get(member, ())) > len(self.inside)

    def _judge(self, member: PeerId, case: Case, step: int) -> None:
        del self.cases[member]
        lies = case.subject in LIARS and member not in LIARS
        self._record(member, case.subject).note(Grade.LIES if lies else Grade.AGREES)
        if lies and member not in self.charges.setdefault(case.subject, set()):
            self.charges[case.subject].add(member)
            for other in self.inside if self.suspects else ():
                if other not in {*LIARS, *self.charges[case.subject]}:
                    self._record(other, case.subject).suspected = True
        for judge, waiting in list(self.cases.items()):
            if waiting.ends is None and waiting.auditor == member:
                if lies:
                    waiting.ends = step + self.lasts
                else:
                    del self.cases[judge]

    def _draw(self, step: int) -> None:
        announced: list[tuple[PeerId, PeerId]] = []
        for member in self.inside:
            case = self.cases.get(member)
            if case is not None and case.ends is not None:
                continue
            others = {m: self._record(member, m) for m in self.inside if m != member}
            secret, closed = member.encode() * 32, f"{self.seed}/{step}".encode()
            subject = drawn(secret, closed, 0, step, others, self.budget)
            if subject is not None:
                self.cases[member] = Case(subject, member, step + self.lasts)
                announced.append((member, subject))
        random.Random(f"{self.seed}/{step}").shuffle(announced)
        for auditor, subject in announced:
            for member in self.inside:
                if member != subject and member not in self.cases:
                    self.cases[member] = Case(subject, auditor, None)

    def _record(self, member: PeerId, other: PeerId) -> Record:
        return self.records.setdefault((member, other), Record())


def out_after(trials: int, lasts: int, budget: float, *, suspects: bool) -> list[list[int]]:
    """Return for the first, second and third liar the steps until it was out, in each trial;
    ``STEPS`` if it never was."""
    runs = [list(Stage(seed, lasts, suspects, budget).run()) for seed in range(trials)]
    filled = [run + [STEPS] * (len(LIARS) - len(run)) for run in runs]
    return [sorted(column) for column in zip(*filled, strict=True)]


def main() -> None:
    """Simulate, and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--budget", type=float, default=3.0, help="percent of all contributions")
    asked = parser.parse_args()
    print(f"steps until the first, second, third is out: mean (most of {asked.trials})")
    for lasts in LASTS:
        for suspects in (False, True):
            columns = out_after(asked.trials, lasts, asked.budget / 100, suspects=suspects)
            words = (f"{statistics.mean(c):3.0f} ({c[-1]:3})" for c in columns)
            how = "with suspicion" if suspects else "without"
            print(f"an audit lasts {lasts:2} steps, {how:14}  {'  '.join(words)}", flush=True)


if __name__ == "__main__":
    main()
