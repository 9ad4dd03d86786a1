"""Beliefs about all peers, computed from all reports.

A report counts only if its author serves the reported stage or a neighbour of it. At most
``MAX_REPORTERS`` count per peer, those with the lowest rank, so that all members count the same
ones and a crowd of reporters gains nothing. A record in which a peer reports on itself is refused
earlier. Equal records and equal seats give equal beliefs on every machine; while records spread,
beliefs differ for a few seconds.

State: the newest reports, and the last beliefs.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import msgspec

from protocol.ids import PeerId, rank
from protocol.manifest import StageCost
from protocol.matching.member import Member
from protocol.membership.measured import Measurements, Partner
from protocol.reputation.belief import believe

MAX_REPORTERS: Final = 16


class Beliefs:
    """See the module's docstring."""

    def __init__(self, costs: Sequence[StageCost]) -> None:
        self._costs = tuple(costs)
        self.reports: dict[PeerId, Measurements] = {}
        """By reporter."""
        self._known: dict[PeerId, Member] = {}

    def revise(self, claimed: Iterable[Member]) -> list[Member]:
        """Recompute the beliefs about live members; return those of which another speed is believed
        than before."""
        live, before = {member.peer: member for member in claimed}, self._known
        about: defaultdict[PeerId, dict[PeerId, Partner]] = defaultdict(dict)
        for reporter in self.reports.keys() & live.keys():
            for partner in self.reports[reporter].partners:
                if partner.peer != reporter:
                    about[partner.peer][reporter] = partner
        self._known = {peer: self._believe(one, about[peer], live) for peer, one in live.items()}
        pairs = ((one, before.get(peer, live[peer])) for peer, one in self._known.items())
        return [one for one, old in pairs if _speed(one) != _speed(old)]

    def of(self, claimed: Member) -> Member:
        """Return a member with the speed believed of it by the last ``revise``; before, its
        claim."""
        known = self._known.get(claimed.peer, claimed)
        return replace(claimed, flops=known.flops, measured_s=known.measured_s)

    def _believe(
        self, claimed: Member, about: Mapping[PeerId, Partner], live: Mapping[PeerId, Member]
    ) -> Member:
        reporters = sorted(about, key=lambda peer: rank("reporter", claimed.peer, peer))
        counted = [peer for peer in reporters if live[peer].serving][:MAX_REPORTERS]
        reports = [self._within(about[peer], live[peer]) for peer in counted]
        return believe(claimed, reports, self._costs)

    def _within(self, report: Partner, reporter: Member) -> Partner:
        """Return the part of a report about stages that its author serves or neighbours."""
        near = {stage + step for stage in reporter.serving for step in (-1, 0, 1)}
        rates = {rate.stage: rate for rate in report.rates if rate.stage in near}
        known = (rate for stage, rate in rates.items() if stage < len(self._costs))
        return msgspec.structs.replace(report, rates=tuple(known))


def _speed(member: Member) -> object:
    return member.claim, member.measured_s
