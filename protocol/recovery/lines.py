"""Two lines of one run meet: which one is given up, and what is fetched of the other one before.

A *line* is a lineage with the members that follow it. Members that left in order, or whose process
ended, are missed by nobody, so two may train. Where two lines meet, one stands (``Line.place``; of
two that were begun apart the founder's, once it has a checkpoint); the members of the other fetch
its state and give up their own steps. No side counts itself lower than the other side does, so one
at most gives up.

State: since when each other line is seen, how far it was then, and how often its state came too
slowly; what is being fetched of which line, what is here, and since when a line stands before ours.
Times are monotonic seconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from operator import methodcaller
from typing import Final

from protocol.ids import PeerId
from protocol.pace import ASIDE_S, FETCH_S, FORGET_S
from protocol.recovery.choice import order
from protocol.recovery.effects import FetchLine, GivenUp
from protocol.recovery.evidence import AHEAD_STEPS
from protocol.recovery.knowledge import MANY_CHECKPOINTS, PATIENCE_S, Knowledge, since
from protocol.recovery.stored import Copy, Lineage

MANY: Final = 3
MOST_DOUBLINGS: Final = 10
"""Each attempt at the state of one line may take twice as long as the one before: a slow donor is
not left out, and one whose bytes drip holds up nobody for good."""
MOST_FAILURES: Final = 3


@dataclass(frozen=True, slots=True)
class Line:
    """A lineage, and what we see of those that follow it."""

    lineage: Lineage
    members: frozenset[PeerId]
    """At least one."""
    steps: int
    """Its newest version."""

    def place(self, founder: PeerId | None) -> tuple[int, int, bool, PeerId]:
        """Return a sort key: of two lines the lower one stands, and the other one is given up;
        ``founder``: of the run."""
        count, lowest = len(self.members), min(self.members)
        return -count if count >= MANY else 0, -self.steps, founder not in self.members, lowest


class Lines:
    """See the module's docstring."""

    def __init__(self, known: Knowledge) -> None:
        self._known = known
        self._others = dict[Lineage, Line]()
        """All other lines that members serve now."""
        self._first_seen: dict[Lineage, tuple[float, int]] = {}
        """Of these: since when, and how far each was then."""
        self._slow: dict[Lineage, int] = {}
        """Of these: how often the state came too slowly."""
        self._fetching: FetchLine | None = None
        self._fetching_since = 0.0
        self._fetched: FetchLine | None = None
        """What is here."""
        self.failures = 0
        """Of the fetch that was last tried, one after the other."""
        self._greater_since: float | None = None
        """Since when a line is there that stands before ours."""

    # --- the lines ---------------------------------------------------------------------------

    def _seen(self, made: int) -> tuple[Line, list[Line]]:
        """Return our line, which goes on from the version ``made``, and those that linked members
        with a voice serve beside it.

        Of the other lines those members count alone, of ours all that serve it. So each side counts
        itself at least as high as the other side does, and never do both give up.
        """
        known, served = self._known, dict[Lineage, int]()
        said = known.lineages_of(self._those_we_may_meet())
        for peer, lineage in said.items():
            version = known.context.eras.get(peer, {}).get(lineage.era)
            if lineage != known.lineage and version is not None:
                served[lineage] = max(version, served.get(lineage, 0))

        def members(of: Lineage) -> frozenset[PeerId]:
            return frozenset(peer for peer, lineage in said.items() if lineage == of)

        with_us = members(known.lineage).union({known.me}, *known.context.serving)
        ours = Line(known.lineage, with_us, made)
        apart = len(ours.members) < MANY
        return ours, [
            Line(lineage, members(lineage), steps)
            for lineage, steps in served.items()
            if steps <= known.steps and known.is_credible(lineage, apart=apart)
        ]

    def _those_we_may_meet(self) -> frozenset[PeerId]:
        """Return the linked members for whose line we may give up ours: if we train, only those
        that we have worked with, and those with the founder; whoever has worked with nobody, or
        has not trained for long, believes all, the founder only until a checkpoint is at stake."""
        known, evidence, linked = self._known, self._known.evidence, self._known.linked()
        if not known.open:
            return known.voters()
        if known.is_stalled():
            return linked
        alone_for_long = known.me == known.founder and known.steps_made() > known.every
        if evidence.any_proven or alone_for_long:
            founders, said = self._founders(), known.lineages_of(linked)
            with_founder = {peer for peer, lineage in said.items() if lineage == founders}
            return frozenset(filter(evidence.proves, linked)) | with_founder
        return linked

    def _founders(self) -> Lineage | None:
        """Return the lineage that the founder follows; None: it is not here, or that was not begun
        apart from ours."""
        known, founder = self._known, self._known.founder
        if founder is None or founder not in known.linked() & known.stored.keys():
            return None
        lineage = known.stored[founder].lineage
        common = min(lineage.version, known.lineage.version) or known.evidence.proves(founder)
        return None if common or lineage == known.lineage else lineage

    def _comes_first(self, line: Line) -> bool:
        """Whether a line has begun apart from ours, is the founder's, and has a checkpoint: then it
        stands, however far ours has gone."""
        apart = line.lineage == self._founders() and not self._shared(line)
        return apart and line.steps > self._known.every

    def _shared(self, line: Line) -> int:
        """Return the version up to which ours and another line are one, as far as we know."""
        begun = min(self._known.lineage.version, line.lineage.version)
        return max(begun, self._known.evidence.together(line.members))

    def trained_apart(self) -> frozenset[Lineage]:
        """Return the lineages beside which we have made steps that their members have had no part
        in; for who comes back, more than a checkpoint interval. We go over to these only as to a
        line that stands before ours: their members may be about to come over to us."""
        known = self._known
        if not known.evidence.worked:
            return frozenset()
        _, others = self._seen(0)
        if not others:
            return frozenset()
        made, few = known.steps_made(), AHEAD_STEPS if known.open else known.every
        return frozenset(
            line.lineage
            for line in others
            if made > max(self._shared(line), line.lineage.version) + few
        )

    def beside(self) -> list[Line]:
        """Return the lines that others have trained for a while beside ours, whichever stands."""
        return list(filter(self._trains, self._others.values()))

    def _see(self, others: Collection[Line]) -> None:
        """Take all other lines that members serve now."""
        self._others = {line.lineage: line for line in others}
        new = {of: (self._known.now, line.steps) for of, line in self._others.items()}
        self._first_seen = {of: self._first_seen.get(of, now) for of, now in new.items()}
        self._slow = {of: count for of, count in self._slow.items() if of in new}

    def _trains(self, line: Line) -> bool:
        """Whether a line has been there for long and has gone on meanwhile, or is at the run's last
        step. A roll-back takes less, and whoever has not heard of it yet follows meanwhile."""
        now, steps = self._known.now, self._known.steps
        since_s, version = self._first_seen.get(line.lineage, (now, line.steps))
        return now >= since_s + FORGET_S and (line.steps > version or line.steps >= steps)

    # --- for which of them ours is given up --------------------------------------------------

    def greater(self, made: int, *, deciding: bool = False) -> Line | None:
        """Return the line for which ours is given up, if ours goes on from the version ``made``.

        Args:
            made: our version.
            deciding: whether we would begin anew now, without those of our line that are away.
        """
        known = self._known
        ours, others = self._seen(made)
        self._see(others)
        known.refused = {of: until for of, until in known.refused.items() if until > known.now}
        place = methodcaller("place", known.founder)
        found = [
            line
            for line in others
            if self._may_join(line, deciding=deciding)
            and (self._comes_first(line) or place(line) < place(ours))
        ]
        # A state that is here comes first, or else two lines could take turns in being fetched.
        here = [line for line in found if self._here(line)]
        best = min(here or found, key=place, default=None)
        bound = len(ours.members) >= MANY and not (best and self._comes_first(best))
        if best is not None and bound and not self._may_leave_for(best.lineage):
            best = None
        self._greater_since = since(self._greater_since, known.now, holds=best is not None)
        return best

    def next_deadline(self) -> float | None:
        """Return when a line will have been there for long."""
        due = (since_s + FORGET_S for since_s, _ in self._first_seen.values())
        later = (at for at in due if at > self._known.now)
        return min(later, default=None) if self._known.open else None

    def _may_join(self, line: Line, *, deciding: bool) -> bool:
        """Whether a line is reason enough to give up ours if it stands before ours. One that has
        not come as far as where ours begins was perhaps left behind by a roll-back; it is joined
        only if nothing is left of ours."""
        known = self._known
        if known.is_refused(line.lineage):
            return False
        if known.open:
            return self._trains(line)
        further = line.steps > known.lineage.version
        return deciding or further or order(line.lineage) > order(known.lineage)

    def _may_leave_for(self, lineage: Lineage) -> bool:
        """Whether enough have left our lineage for another one: a majority of the electors of a
        plan of ours; anybody's word if we have just come back, or have not trained for long."""
        known = self._known
        if not known.open or known.is_stalled():
            return True
        follow = {peer for peer, said in known.stored.items() if said.lineage == lineage}
        return known.evidence.seconded(follow.__contains__, known.context.is_gone)

    # --- what is fetched before ours is given up ---------------------------------------------

    def go_over(
        self, line: Line, made: int, *, healthy: bool
    ) -> GivenUp | FetchLine | float | None:
        """Return what we do about a line that stands before ours: give up ours, at once if there is
        nothing to give up; else have its state fetched; or until when its copies are waited for, if
        they are not being fetched while ours goes on.

        Args:
            line: that stands before ours.
            made: our version.
            healthy: whether our line trains meanwhile.
        """
        known, stages = self._known, self._stages_with_state()
        by_steps = len(line.members) < MANY and not self._comes_first(line)
        least = made - MANY_CHECKPOINTS * known.every if by_steps else 0
        here = self._here(line)
        ready = all(copy.version >= least for copy in here)
        if (ready and stages <= {copy.stage for copy in here}) or not known.steps_made():
            return self._given_up(line)
        if self._fetching is None:
            if (wanted := self._copies_of(line, stages, least)) is not None:
                self._fetching, self._fetching_since, self._fetched = wanted, known.now, None
                return wanted
        elif healthy:
            return None
        until = (self._greater_since or 0.0) + PATIENCE_S
        if known.now >= until:
            self._refuse(line.lineage)
        return until

    def _stages_with_state(self) -> frozenset[int]:
        """Return the stages whose state we serve; if we serve none, those of our copies."""
        known = self._known
        served = {s for s, there in enumerate(known.context.serving) if known.me in there}
        return frozenset(served or {copy.stage for copy in known.own_copies()})

    def _copies_of(self, line: Line, stages: Collection[int], least: int) -> FetchLine | None:
        """Return the copy of each stage that most members of a line name, of these the newest;
        None: there is none yet that is new enough."""
        copies, donors = list[Copy](), set[PeerId]()
        said = {peer: self._known.stored[peer].copies for peer in line.members}
        for stage in sorted(stages):
            count = Counter(
                copy
                for held in said.values()
                for copy in held
                if copy.stage == stage and max(least, 1) <= copy.version <= line.steps
            )
            if not count:
                return None
            best = max(count, key=lambda copy: (count[copy], copy))
            copies.append(best)
            donors |= {peer for peer, held in said.items() if best in held}
        within_s = FETCH_S * 2.0 ** min(self._slow.get(line.lineage, 0), MOST_DOUBLINGS)
        return FetchLine(line.lineage, tuple(copies), tuple(sorted(donors)), within_s)

    def _here(self, line: Line) -> tuple[Copy, ...]:
        """Return what is here of the state of a line."""
        here = self._fetched
        return here.copies if here is not None and here.lineage == line.lineage else ()

    def _given_up(self, line: Line) -> GivenUp:
        version, fetched = self._known.steps_made(), self._here(line)
        steps, members = max(0, version - self._shared(line)), tuple(sorted(line.members))
        self._fetched = self._greater_since = None
        return GivenUp(version, steps, members, line.steps, fetched)

    def fetched(self) -> None:
        """The copies of the last ``FetchLine`` are here, each as it was named."""
        if (wanted := self._fetching) is not None:
            self._fetching, self._fetched, self.failures = None, wanted, 0

    def not_fetched(self) -> None:
        """They cannot be had, or are not what was named."""
        if (wanted := self._fetching) is not None:
            self._fetching, self.failures = None, self.failures + 1
            slow = self._known.now >= self._fetching_since + wanted.within_s
            if slow:
                self._slow[wanted.lineage] = self._slow.get(wanted.lineage, 0) + 1
            if slow or self.failures >= MOST_FAILURES:
                self.failures = 0
                self._refuse(wanted.lineage)

    def _refuse(self, lineage: Lineage) -> None:
        self._known.refused[lineage] = self._known.now + ASIDE_S
