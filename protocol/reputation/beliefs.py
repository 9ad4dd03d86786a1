"""Beliefs about all peers, computed from all reports.

A report counts only if its author serves the reported stage or a neighbour of it. At most
``MAX_REPORTERS`` count per peer, those with the lowest rank, so that all members count the same
ones and a crowd of reporters gains nothing. A record in which a peer reports on itself is refused
earlier. Equal records and equal seats give equal beliefs on every machine; while records spread,
beliefs differ for a few seconds.

State: reports by subject, and the last beliefs.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from protocol.ids import PeerId, Stage, rank
from protocol.manifest import StageCost
from protocol.membership.measured import Measurements, Partner
from protocol.reputation.belief import Belief, believe

MAX_REPORTERS: Final = 16


@dataclass(frozen=True, slots=True)
class Subject:
    """A live member: its claim and the stages it serves."""

    peer: PeerId
    claim: Belief
    serving: frozenset[Stage]


class Beliefs:
    """See the module's docstring."""

    def __init__(self, costs: Sequence[StageCost]) -> None:
        self._costs = tuple(costs)
        self._about: dict[PeerId, dict[PeerId, Partner]] = {}
        """Subject -> reporter -> report."""
        self._known: dict[PeerId, Belief] = {}

    def report(self, reporter: PeerId, measurements: Measurements) -> None:
        """Take a reporter's newest record in place of its previous one."""
        self.forget(reporter)
        for partner in measurements.partners:
            subject = PeerId(partner.peer)
            if subject != reporter:
                self._about.setdefault(subject, {})[reporter] = partner

    def forget(self, reporter: PeerId) -> None:
        """Drop a reporter's record."""
        for subject in [one for one, about in self._about.items() if reporter in about]:
            del self._about[subject][reporter]
            if not self._about[subject]:
                del self._about[subject]

    def revise(self, subjects: Iterable[Subject]) -> dict[PeerId, Belief]:
        """Recompute the beliefs about live members; return the changed ones."""
        live, before = {subject.peer: subject for subject in subjects}, self._known
        self._known = {peer: self._believe(one, live) for peer, one in live.items()}
        return {
            peer: belief
            for peer, belief in self._known.items()
            if belief != before.get(peer, live[peer].claim)
        }

    def of(self, subject: Subject) -> Belief:
        """Return the belief about a member by the last ``revise``; what it claims before."""
        return self._known.get(subject.peer, subject.claim)

    def _believe(self, subject: Subject, live: Mapping[PeerId, Subject]) -> Belief:
        about = self._about.get(subject.peer, {})
        reporters = sorted(
            (reporter for reporter in about if reporter in live),
            key=lambda reporter: rank("reporter", subject.peer, reporter),
        )
        reports = (_within(about[peer], live[peer].serving) for peer in reporters)
        counted = [report for report in reports if report is not None][:MAX_REPORTERS]
        return believe(subject.claim, subject.serving, counted, self._costs)


def _within(report: Partner, serving: frozenset[Stage]) -> Partner | None:
    """Return the part of a report about stages that its author serves or neighbours."""
    if not serving:
        return None
    near = {stage + step for stage in serving for step in (-1, 0, 1)}
    return msgspec.structs.replace(
        report, rates=tuple(rate for rate in report.rates if rate.stage in near)
    )
