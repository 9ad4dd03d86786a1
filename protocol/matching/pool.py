"""The pool of a steward: the places at one stage, and the choice among proposers.

State: leases, rates and the limits (quota, floor, cutoff) of the running epoch. It has no messages
and no phases; those are in ``steward.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from protocol.ids import PeerId, Stage
from protocol.matching.choice import Proposer, prefix_cover
from protocol.matching.member import Member
from protocol.matching.population import Population
from protocol.matching.timing import LEASE_S


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldPlace(Proposer):
    """One volunteer's place at the stage. Its rate is the claim, capped by the view's rate."""

    claimed_rate: int
    expires_at: float
    second: bool = False
    """It has its home elsewhere: it displaces nobody and is not chosen among."""
    confirmed: bool = False
    """The membership view has shown it here."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a stage's choice in one epoch, within which they are only tightened."""

    quota: int
    floor: int
    """Members that it keeps even if the quota is reached (r_eff)."""
    cutoff: int = 0
    """Highest score rejected."""


class Pool:
    """Places of one stage."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.places: dict[PeerId, HeldPlace] = {}
        self.revision = 0
        """Incremented by every change of the pool."""
        self._limits = Limits(0, 1)

    @property
    def limits(self) -> Limits:
        """The limits of the present epoch."""
        return self._limits

    @limits.setter
    def limits(self, limits: Limits) -> None:
        self.revision += 1
        self._limits = limits

    @property
    def homes(self) -> list[HeldPlace]:
        """Places of members that are, or would be, at home here."""
        return [place for place in self.places.values() if not place.second]

    @property
    def level(self) -> int:
        """Summed rate of its home members."""
        return sum(place.rate for place in self.homes)

    @property
    def locked(self) -> list[HeldPlace]:
        """Places of incumbents at home here."""
        return [place for place in self.homes if place.locked]

    @property
    def all_locked(self) -> bool:
        """True if no newcomer is waiting."""
        return all(place.locked for place in self.places.values())

    @property
    def last_newcomer(self) -> HeldPlace | None:
        """The least preferred place that is not final."""
        fresh = (place for place in self.homes if not place.locked)
        return max(fresh, key=lambda place: place.order, default=None)

    def reopen(self, population: Population) -> None:
        """Begin an epoch: the quota is lambda, no cutoff, scores at the present lambda."""
        self.limits = Limits(population.fair_level, population.redundancy)
        for place in list(self.places.values()):
            self._recount(place, population)

    def adopt(self, population: Population, now: float) -> None:
        """Add the members whose adverts name this stage; a successor starts with these.

        Those that may not decide renew their places themselves: anybody may advertise a seat.
        """
        for peer in sorted(population.holders(self.stage)):
            rate = population.rate(peer, self.stage)
            member = population.members[peer]
            if rate and self.stage in (member.home_stage, member.second) and member.may_decide:
                place = HeldPlace(
                    peer=peer,
                    claimed_rate=rate,
                    rate=rate,
                    score=population.score(peer, self.stage, population.fair_level),
                    expires_at=now + LEASE_S,
                    locked=True,
                    second=member.second == self.stage,
                    confirmed=True,
                )
                self._store(place)

    def refresh(self, population: Population) -> list[PeerId]:
        """Recompute rates after the view changed, and lock incumbents that the view confirms.

        Returns the peers that, by the view, do not hold it any more.
        """
        gone = []
        for place in list(self.places.values()):
            member = population.members.get(place.peer)
            second = member is not None and member.second == self.stage
            here = second or (member is not None and member.home_stage == self.stage)
            rate = min(place.claimed_rate, population.rate(place.peer, self.stage))
            if place.confirmed and not here:
                gone.append(place.peer)
            if here and not (place.confirmed and place.locked and place.second == second):
                place = replace(place, second=second, locked=True, confirmed=True)
            self._store(place if rate == place.rate else replace(place, rate=rate))
        return gone

    def put(self, place: HeldPlace) -> None:
        """Add or renew a place; a locked place stays locked."""
        known = self.places.get(place.peer)
        if known is not None:
            locked, confirmed = place.locked or known.locked, place.confirmed or known.confirmed
            place = replace(place, locked=locked, confirmed=confirmed)
        self._store(place)

    def drop(self, peer: PeerId) -> HeldPlace | None:
        """Remove a place."""
        self.revision += 1
        return self.places.pop(peer, None)

    def lapsed(self, now: float, population: Population) -> list[PeerId]:
        """Return the holders whose lease has expired and that the membership view does not confirm.

        The advert of a live member is signed and names its stages, so it renews the lease.
        """
        late = [place for place in self.places.values() if place.expires_at <= now]
        for place in late:
            member = population.members.get(place.peer)
            if place.locked and member is not None and self._claims_seat(place, member):
                self.put(replace(place, expires_at=now + LEASE_S))
        return [place.peer for place in late if self.places[place.peer].expires_at <= now]

    def lock_all(self) -> list[HeldPlace]:
        """Make every place final; return those that were not."""
        fresh = [place for place in self.places.values() if not place.locked]
        for place in fresh:
            self._store(replace(place, locked=True))
        return [self.places[place.peer] for place in fresh]

    def choose(self) -> list[HeldPlace]:
        """Keep the prefix cover; release and return the others."""
        choice = prefix_cover(self.homes, self.limits.quota, self.limits.floor)
        return [self.release(place) for place in choice.let_go]

    def give(self, place: HeldPlace) -> HeldPlace:
        """Give up the least preferred place, and keep no more than what is left."""
        self.release(place)
        self.limits = replace(self.limits, quota=min(self.limits.quota, self.level))
        return place

    def release(self, place: HeldPlace) -> HeldPlace:
        """Give a place up and raise the cutoff to its score."""
        del self.places[place.peer]
        self.limits = replace(self.limits, cutoff=max(self.limits.cutoff, place.score))
        return place

    def _claims_seat(self, place: HeldPlace, member: Member) -> bool:
        """Tell whether a member says that it holds this stage, or is moving here and not confirmed
        yet."""
        coming = self.stage in member.held and not place.confirmed
        return self.stage in (member.home_stage, member.second) or coming

    def _recount(self, place: HeldPlace, population: Population) -> None:
        if place.peer in population:
            score = population.score(place.peer, self.stage, population.fair_level)
            self._store(replace(place, score=score))

    def _store(self, place: HeldPlace) -> None:
        if self.places.get(place.peer) != place:
            self.places[place.peer] = place
            self.revision += 1
