"""The board: the newest believable posting of every stage, as one peer sees it.

Holds at most ``AUTHORS_PER_STAGE`` postings a stage. A posting is kept before it is believed,
because the author may become known to the membership view only later. Decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from protocol.ids import PeerId, Stage
from protocol.matching import bodies, preferences, stewards
from protocol.matching.bodies import Mandate, Posting
from protocol.matching.population import Population
from protocol.matching.timing import POSTING_TTL_S

AUTHORS_PER_STAGE = 8
CANDIDATES_AGE_S = 5.0
"""Candidates change with the age of peers and the beacon; deriving them costs O(n) a stage."""


@dataclass(frozen=True, slots=True)
class Notice:
    """A posting with who wrote it and when (monotonic seconds) it came."""

    author: PeerId
    posting: Posting
    received_at: float

    @property
    def source(self) -> tuple[PeerId, Mandate]:
        """What identifies the stewardship it comes from."""
        return (self.author, self.posting.mandate)


class Standing(NamedTuple):
    """How well a stage is off; tuples compare coverage and redundancy before throughput."""

    covered: int
    """Replicas, counted up to r."""
    level: int

    @classmethod
    def of(cls, replicas: int, level: int, r: int) -> Standing:
        """Return the standing of a stage with so many replicas."""
        return cls(min(replicas, r), level)


class Board:
    """Postings by stage. ``observe`` hands in the membership view that decides who is believed."""

    def __init__(self, stage_count: int) -> None:
        self._notices: list[dict[PeerId, Notice]] = [{} for _ in range(stage_count)]
        self._plausible: dict[tuple[Stage, int], frozenset[PeerId]] = {}
        self._last_believed: dict[Stage, Notice] = {}
        self._current: dict[Stage, Notice | None] = {}  # until something changes or expires
        self._population: Population | None = None
        self._wall_s = 0.0

    def observe(self, population: Population, wall_s: float) -> None:
        """Take the current view; candidates are derived anew when it or the time changed."""
        if population is self._population and abs(wall_s - self._wall_s) < CANDIDATES_AGE_S:
            return
        self._population = population
        self._wall_s = wall_s
        self._plausible.clear()
        self._current.clear()

    def pin(self, author: PeerId, posting: Posting, now: float) -> bool:
        """Keep a posting; False if it is not newer than what the same author said before."""
        notices = self._notices[posting.stage]
        known = notices.get(author)
        if known and _age_order(posting) <= _age_order(known.posting):
            return False
        notices[author] = Notice(author, posting, now)
        self._current.pop(bodies.stage_of(posting), None)
        if len(notices) > AUTHORS_PER_STAGE:
            del notices[max(notices, key=lambda peer: self._worth_forgetting(notices[peer]))]
        return True

    def current(self, stage: Stage, now: float) -> Notice | None:
        """Return the posting that counts for a stage: fresh, by a live candidate, newest mandate.

        Two peers with the same mandate (they did not know of each other): the lower rank counts.
        """
        if stage in self._current:
            known = self._current[stage]
            if known is None or now - known.received_at < POSTING_TTL_S:
                return known
        believed = [n for n in self._notices[stage].values() if self._believed(n, now)]
        best = min(believed, key=lambda n: _precedence(n.author, n.posting), default=None)
        self._current[stage] = best
        if best:
            self._last_believed[stage] = best
        return best

    def knows(self, author: PeerId, stage: Stage, mandate: Mandate) -> bool:
        """Tell whether a mandate has been posted, believed or not."""
        notice = self._notices[stage].get(author)
        return notice is not None and notice.posting.mandate == mandate

    def predecessor(self, stage: Stage) -> Notice | None:
        """Return the last posting of a stage that was believed: what a successor follows."""
        return self._last_believed.get(stage)

    def notices(self, now: float) -> dict[Stage, Notice]:
        """Return the posting of every stage that has one."""
        found = ((Stage(s), self.current(Stage(s), now)) for s in range(len(self._notices)))
        return {stage: notice for stage, notice in found if notice}

    def next_expiry(self, now: float) -> float:
        """Return when the next believed posting loses its force."""
        times = (notice.received_at + POSTING_TTL_S for notice in self.notices(now).values())
        return min(times, default=float("inf"))

    def uncovered(self, now: float) -> list[Stage]:
        """Return the stages that have no replica or nobody to speak for them."""
        notices = self.notices(now)
        return [
            Stage(s)
            for s in range(len(self._notices))
            if Stage(s) not in notices or not notices[Stage(s)].posting.replicas
        ]

    def _believed(self, notice: Notice, now: float) -> bool:
        return now - notice.received_at < POSTING_TTL_S and notice.author in self._candidates(
            bodies.stage_of(notice.posting), notice.posting.mandate.beacon
        )

    def _candidates(self, stage: Stage, beacon: int) -> frozenset[PeerId]:
        if self._population is None or abs(beacon - stewards.beacon_at(self._wall_s)) > 1:
            return frozenset()
        key = (stage, beacon)
        if key not in self._plausible:
            self._plausible[key] = frozenset(
                stewards.by_rank(self._population, stage, beacon)
                + stewards.succession(self._population, stage, beacon, self._wall_s)
            )
        return self._plausible[key]

    def _worth_forgetting(self, notice: Notice) -> tuple[bool, tuple[int, int, bytes]]:
        stranger = self._population is None or notice.author not in self._population
        return (stranger, _precedence(notice.author, notice.posting))


def _age_order(posting: Posting) -> tuple[Mandate, int, int]:
    return (posting.mandate, posting.epoch, posting.issued_ms)


def _precedence(author: PeerId, posting: Posting) -> tuple[int, int, bytes]:
    """Smaller counts more: later beacon, higher term, lower rank."""
    beacon, term = posting.mandate
    return (-beacon, -term, stewards.role_rank(beacon, bodies.stage_of(posting), author))


def outranks(mine: tuple[PeerId, Mandate], other: Notice) -> bool:
    """Tell whether my mandate counts more than another's posting for the same stage."""
    author, (beacon, term) = mine
    rank = stewards.role_rank(beacon, bodies.stage_of(other.posting), author)
    return (-beacon, -term, rank) < _precedence(other.author, other.posting)


def describe(posting: Posting) -> str:
    """Say a posting in words."""
    return (
        f"{posting.replicas} of {posting.r} replicas, {preferences.words(posting.level)} of "
        f"{preferences.words(posting.quota)}"
    )
