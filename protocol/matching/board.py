"""The board: the newest believable posting of every stage.

A posting is kept even if it is not believed yet, because its author may enter the membership view
only later: a few of each stage, for anybody may post. Decides nothing. Derived values are computed
once per change, so simulated peers with equal inputs may share one board.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from protocol.ids import PeerId, Stage
from protocol.matching import bodies, preferences, stewards
from protocol.matching.bodies import Posting
from protocol.matching.population import Population
from protocol.matching.timing import LEASE_S
from protocol.wire.letters import Mandate

INFINITY = float("inf")


@dataclass(frozen=True, slots=True)
class Notice:
    """A posting with its author and its time of arrival (monotonic seconds)."""

    author: PeerId
    posting: Posting
    received_at: float

    @property
    def source(self) -> tuple[PeerId, Mandate]:
        """The stewardship it comes from: author and mandate."""
        return (self.author, self.posting.mandate)

    def expired(self, now: float) -> bool:
        """Tell whether it was not repeated for so long that it is believed no more."""
        return now >= self.received_at + LEASE_S


@dataclass(frozen=True, slots=True)
class Facts:
    """Values derived from the postings that count."""

    vacant: tuple[Stage, ...]
    """Stages without a steward, or with one of an earlier beacon only."""
    empty: tuple[Stage, ...]
    """Stages whose steward knows of no replica."""
    known_empty: bool
    """Every stage has a posting, and the empty ones have waited for arrivals."""
    covered: tuple[int, ...] | None
    """Replicas of every stage once each has a final one; None before."""


class Board:
    """Postings by stage; the view given to ``observe`` determines which authors are believed."""

    def __init__(self, stage_count: int) -> None:
        self._stages = [Stage(s) for s in range(stage_count)]
        self._kept: list[dict[PeerId, Notice]] = [{} for _ in range(stage_count)]
        self.last_believed: dict[Stage, Notice] = {}
        """The last posting of every stage that counted, which a successor continues."""
        self._population: Population | None = None
        self._beacon = 0
        self.revision = 0
        """Incremented when the postings that count may have changed, not by a repeated posting."""
        self._current: dict[Stage, Notice] = {}
        self._stale: set[Stage] = set(self._stages)
        self._expires_at = INFINITY
        self._facts = Facts((), (), False, None)

    def observe(self, population: Population, wall_s: float) -> None:
        """Take the current view; the postings are judged again if it or the beacon changed."""
        beacon = stewards.beacon_at(wall_s)
        if population is self._population and beacon == self._beacon:
            return
        self._population, self._beacon = population, beacon
        for stage, kept in enumerate(self._kept):
            self._kept[stage] = {peer: n for peer, n in kept.items() if self._is_of_now(n)}
        self._stale.update(self._stages)
        self.revision += 1

    def pin(self, author: PeerId, posting: Posting, now: float) -> bool:
        """Keep ``posting``, received at ``now``; return False if ``author`` has posted a newer one,
        or is not believed and one of many."""
        stage = posting.stage
        kept = self._kept[stage]
        notices = {peer: notice for peer, notice in kept.items() if not notice.expired(now)}
        known = notices.get(author)
        if known and _age_order(posting) <= _age_order(known.posting):
            return False
        notice = Notice(author, posting, now)
        if not known and len(notices) >= bodies.MAX_AUTHORS and not self._believed(notice, now):
            return False
        notices[author] = notice
        self._kept[stage] = notices
        if known and _same_news(known.posting, posting) and self._current.get(stage) is known:
            self._current[stage] = self.last_believed[stage] = notices[author]
            return True
        self._stale.add(stage)
        self.revision += 1
        return True

    def notices(self, now: float) -> Mapping[Stage, Notice]:
        """Return the posting that counts for every stage that has one, in order: fresh, by a live
        candidate, newest mandate.

        Of two peers with the same mandate (they did not know of each other) the lower rank counts.
        """
        if self._stale or now >= self._expires_at:
            self._derive(now)
        return self._current

    def next_expiry(self, now: float) -> float:
        """Return the earliest monotonic time at which a believed posting may expire."""
        self.notices(now)
        return self._expires_at

    def facts(self, now: float) -> Facts:
        """Return the derived values that every part reads at each look."""
        self.notices(now)
        return self._facts

    # --- inside ---------------------------------------------------------------------------------

    def _sum_up(self) -> Facts:
        postings = {stage: notice.posting for stage, notice in self._current.items()}
        silent = [stage for stage in self._stages if stage not in postings]
        old = [s for s, posting in postings.items() if posting.mandate.beacon < self._beacon]
        empty = [s for s, posting in postings.items() if not posting.copies]
        final = all(
            p.locked_replicas or (p.seconds and p.phase == bodies.COMMITTED)
            for p in postings.values()
        )
        return Facts(
            vacant=tuple(sorted(silent + old)),
            empty=tuple(empty),
            known_empty=not silent and all(postings[s].phase >= bodies.QUIET for s in empty),
            covered=tuple(p.copies for p in postings.values()) if final and not silent else None,
        )

    def _derive(self, now: float) -> None:
        expired = {stage for stage, notice in self._current.items() if notice.expired(now)}
        self.revision += bool(expired)
        current = dict(self._current)  # a copy: a caller may be iterating over the old one
        for stage in self._stale | expired:
            current.pop(stage, None)
            ranked = sorted(self._kept[stage].values(), key=_precedence)
            best = next((notice for notice in ranked if self._believed(notice, now)), None)
            if best is not None:  # whoever is behind it steps down
                self._kept[stage] = {n.author: n for n in ranked[: ranked.index(best) + 1]}
                current[stage] = self.last_believed[stage] = best
        self._stale.clear()
        self._current = dict(sorted(current.items()))
        times = (notice.received_at + LEASE_S for notice in current.values())
        self._expires_at = min(times, default=INFINITY)
        self._facts = self._sum_up()

    def _is_of_now(self, notice: Notice) -> bool:
        """Tell whether it is of this beacon or an adjacent one; ours is not after our clock was set
        back."""
        return abs(notice.posting.mandate.beacon - self._beacon) <= 1

    def _believed(self, notice: Notice, now: float) -> bool:
        if self._population is None or notice.expired(now):
            return False
        stage, beacon = notice.posting.stage, notice.posting.mandate.beacon
        return notice.author in self._population.candidates(stage, beacon)


def _same_news(old: Posting, new: Posting) -> bool:
    return msgspec.structs.replace(old, issued_ms=new.issued_ms) == new


def _age_order(posting: Posting) -> tuple[Mandate, int, int]:
    return (posting.mandate, posting.epoch, posting.issued_ms)


def precedence(stage: Stage, source: tuple[PeerId, Mandate]) -> tuple[int, int, bytes]:
    """Return a sort key; the smallest counts: later beacon, then higher term, then lower rank."""
    author, (beacon, term) = source
    return (-beacon, -term, stewards.role_rank(beacon, stage, author))


def _precedence(notice: Notice) -> tuple[int, int, bytes]:
    return precedence(notice.posting.stage, notice.source)


def describe(posting: Posting) -> str:
    """Return a posting's replicas and rates in words."""
    return (
        f"{posting.copies} of {posting.r} replicas, "
        f"{preferences.words(posting.level, posting.quota)}"
    )
