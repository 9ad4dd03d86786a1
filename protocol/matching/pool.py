"""The pool of a steward: the places at one stage, and the choice among proposers.

A stage sorts its proposers by score and keeps the shortest prefix whose summed rate reaches its
quota and that has as many members as redundancy requires. A proposer's acceptance depends only on
those ahead of it, so deferred acceptance is stable and independent of the order of arrival (Dean,
Goemans & Immorlica 2006).

State: leases, rates and the limits (quota, floor, cutoff) of the running epoch.
"""

import math
from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from protocol.ids import PeerId, Stage
from protocol.matching.population import Population


class HeldPlace(msgspec.Struct, frozen=True):
    """One volunteer's place at the stage, or its proposal for one."""

    peer: PeerId
    rate: int
    score: int
    locked: bool
    """It is an incumbent, which is kept whatever its score."""
    expires_at: float
    """Monotonic seconds; infinite once the membership view has shown it here."""
    second: bool = False
    """It has its home elsewhere: it displaces nobody and is not chosen among."""

    @property
    def order(self) -> tuple[bool, int, str]:
        """Sort key, best first."""
        return (not self.locked, -self.score, self.peer)


def prefix_cover(
    proposers: Iterable[HeldPlace], quota: int, floor: int
) -> tuple[list[HeldPlace], list[HeldPlace]]:
    """Return the proposers to keep and those to let go, the best first: kept are those that are
    locked, and the shortest prefix whose summed rate reaches the quota and that has ``floor``
    members."""
    ranked = sorted(proposers, key=lambda proposer: proposer.order)
    level = kept = 0
    for proposer in ranked:
        if not proposer.locked and level >= quota and kept >= floor:
            break
        level += proposer.rate
        kept += 1
    return ranked[:kept], ranked[kept:]


class Pool:
    """Places of one stage."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.places: dict[PeerId, HeldPlace] = {}
        self.quota, self.floor, self.cutoff = 0, 1, 0
        """Limits of the present epoch, within which they are only tightened: the summed rate to
        reach, members that are kept even if it is reached (r_eff), and the highest score rejected.
        """

    @property
    def homes(self) -> list[HeldPlace]:
        """Places of members that are, or would be, at home here."""
        return [place for place in self.places.values() if not place.second]

    @property
    def level(self) -> int:
        """Summed rate of its home members."""
        return sum(place.rate for place in self.homes)

    @property
    def last_newcomer(self) -> HeldPlace | None:
        """The least preferred place that is not final."""
        fresh = (place for place in self.homes if not place.locked)
        return max(fresh, key=lambda place: place.order, default=None)

    def reopen(self, population: Population) -> None:
        """Begin an epoch: the quota is lambda, no cutoff, scores at the present lambda."""
        self.quota, self.floor, self.cutoff = population.fair_level, population.redundancy, 0
        for peer, place in self.places.items():
            score = population.score(peer, self.stage, population.fair_level)
            self.places[peer] = replace(place, score=score)

    def adopt(self, population: Population) -> None:
        """Add the members whose adverts name this stage; a successor starts with these.

        Those that may not decide renew their places themselves: anybody may advertise a seat.
        """
        for peer in sorted(population.holders(self.stage)):
            rate = population.rate(peer, self.stage)
            member = population.members[peer]
            if rate and member.may_decide:
                self.places[peer] = HeldPlace(
                    peer=peer,
                    rate=rate,
                    score=population.score(peer, self.stage, population.fair_level),
                    expires_at=math.inf,
                    locked=True,
                    second=member.second == self.stage,
                )

    def refresh(self, population: Population) -> bool:
        """Lock those that the view shows here, and drop those that it shows here no more. Return
        whether one was dropped.

        The advert of a live member is signed and names its stages, so it replaces the lease.
        """
        shown, before = population.holders(self.stage), list(self.places.values())
        for place in before:
            peer, rate = place.peer, population.rate(place.peer, self.stage)
            if peer in shown:
                second, forever = population.members[peer].second == self.stage, math.inf
                place = replace(place, rate=rate, second=second, locked=True, expires_at=forever)
                self.places[peer] = place
            elif peer in population and place.expires_at < math.inf:
                self.places[peer] = replace(place, rate=rate)
            else:
                del self.places[peer]
        return len(self.places) < len(before)

    def put(self, place: HeldPlace) -> HeldPlace:
        """Add or renew a place and return it; a locked place stays locked."""
        known = self.places.get(place.peer, place)
        locked, expires_at = known.locked or place.locked, max(known.expires_at, place.expires_at)
        self.places[place.peer] = replace(place, locked=locked, expires_at=expires_at)
        return self.places[place.peer]

    def lapsed(self, now: float) -> list[PeerId]:
        """Return the holders whose lease has expired."""
        return [place.peer for place in self.places.values() if place.expires_at <= now]

    def lock_all(self) -> list[HeldPlace]:
        """Make every place final; return those that were not."""
        fresh = [place for place in self.places.values() if not place.locked]
        return [self.put(replace(place, locked=True)) for place in fresh]

    def choose(self) -> list[HeldPlace]:
        """Keep the prefix cover; release and return the others."""
        _, let_go = prefix_cover(self.homes, self.quota, self.floor)
        return [self.release(place) for place in let_go]

    def give(self, place: HeldPlace) -> None:
        """Give up the least preferred place, and keep no more than what is left."""
        self.release(place)
        self.quota = min(self.quota, self.level)

    def release(self, place: HeldPlace) -> HeldPlace:
        """Give a place up and raise the cutoff to its score."""
        del self.places[place.peer]
        self.cutoff = max(self.cutoff, place.score)
        return place
