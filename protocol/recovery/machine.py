"""Rolling the whole swarm back together when the state of a stage is lost, and resuming a run.

Every volunteer says in its stored record which lineage it follows and which checkpoints it has. If
no live member holds a stage's state, or a step can no longer be closed because gradients died with
their holders, the first live member by rank begins the next lineage at the newest version that
every stage has somewhere. The others check that they see the same trouble, and follow. A swarm that
was shut down resumes in the same way: its members come back with copies and no state.

    closed (we do not know yet where to begin) -> open -> trouble -> open in a later lineage

A run that has nothing yet is begun by a decision, too: whoever decides a lineage names the electors
of its first steps. Two that begin apart have two lineages, and one of them stands once they meet.

It holds the stored records of all members, our lineage, and since when there is trouble. It decides
only with a majority of the electors that have not ended, so at most one part of a swarm that falls
silent rolls back. Where too few electors are left to close a step, who is left begins a lineage of
its own, from the state that it serves. Times are monotonic seconds.

Any peer can publish a record. So only members whose work we have counted (``evidence``), and
ourselves, have a voice. A member that has never worked with another, or meets none of them,
believes the members that it is linked with instead. A lineage is followed only if it begins within
the run's steps and agrees with the states that we have made. A member that is training
follows none, unless it has trained apart from others and meets them (``meeting``): then the members
of one line fetch the state of the other before they give up their own steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from protocol.decree.decree import first_electors, is_majority
from protocol.effects import Effect, Explain, Publish
from protocol.ids import PeerId, rank, short
from protocol.limits import MAX_STEP
from protocol.recovery.choice import (
    SEED,
    Claims,
    holders,
    next_era,
    order,
)
from protocol.recovery.evidence import AHEAD_STEPS, Evidence
from protocol.recovery.meeting import FETCH_S, MANY, Line, Meetings, first
from protocol.recovery.stored import (
    HIGHEST_NUMBER,
    MAX_COPIES,
    MAX_ERAS_MISSED,
    STORED,
    Copy,
    Lineage,
    Stored,
    encode_stored,
)
from protocol.view import SwarmView

LOST_S: Final = 1.0
"""How long a stage is without state before we believe it: hand-overs take a moment."""
ENDED_S: Final = 30.0
"""How long electors whose processes have ended are waited for where most have: they come back and
vote, if they were only started anew."""
FEW: Final = 2
"""Of so many electors one alone may be no majority: the other is not waited for."""
SAVE_S: Final = 180.0
"""Bound of the time in which the state that we serve is saved, to go on from it alone."""
STUCK_S: Final = 15.0
STUCK_STEPS: Final = 3.0
"""A replica that closed a step this recently, in seconds or usual steps, is healthy. A stage that
stays behind a neighbour for so long while nothing comes of its step can no longer close it.
Gradients died in the stage after it, or activations in the one before."""
SILENT_SHARE: Final = 0.5
"""A lost stage's replica that is only silent is waited for, for this share of the time in which the
steps that it alone has would be made again. If it never returns, they cost half as much again."""
TURN_S: Final = 3.0
"""Each next replica by rank waits this much longer before it decides in place of earlier ones."""
MAX_TURNS: Final = 8
"""After so many turns every member may decide."""
SETTLE_S: Final = 2.0
"""A returning swarm waits this long after the last member that came."""
MAX_SETTLE_S: Final = 30.0
"""Bound of that wait while we know none of the arrivals: there may be no end of them."""
IN_VAIN_S: Final = 300.0
"""A stage is given what it begins with in this time, or others may know that nobody has it. Nor
does any step take so long in which nothing moves."""
PATIENCE_S: Final = 120.0
"""How long a newer version than the best complete one is waited for: its holder may come back. A
replica that has not closed a step for this long has little to lose and trusts strangers."""
BRIEF_PATIENCE_S: Final = 15.0
"""The same wait if it can save one checkpoint interval at most; and how long a returning replica
waits for peers it has worked with before it trusts strangers."""
FOLLOW_S: Final = 60.0
"""Trouble that we saw so lately makes another's decision about it credible."""
REFRESH_S: Final = 180.0
"""How often our record is published again; it expires after ten minutes."""
MOST_FAILURES: Final = 3
REFUSED_S: Final = 60.0
"""A line whose state could not be had, so many times or in time, or that we have just left, is no
reason to give up ours for so long. Only who sees that it trains goes back to it."""
MANY_CHECKPOINTS: Final = 2
"""A roll-back by more checkpoint intervals than this waits ``PATIENCE_S`` for missing copies."""
MOST_NAMES: Final = 3
"""Number of the awaited members that a message names."""
NOTHING_YET: Final = "nobody has a version of the run yet"


@dataclass(frozen=True, slots=True)
class RecoveryContext:
    """Our view of the swarm."""

    live: frozenset[PeerId] = frozenset()
    """Live members, ourselves included."""
    versions: tuple[int | None, ...] = ()
    """By stage: newest version that a live replica of our lineage serves; None: nobody does."""
    eras: Mapping[PeerId, tuple[int, ...]] = field(default_factory=dict)
    """Of the others that we are linked with and that serve: the era of each of their seats."""
    quorum: Callable[[float], bool] = lambda now: True
    """Whether a majority of the electors of each of our seats is within reach. Asked when we
    decide: it changes with time, while nothing else does."""
    moved: tuple[int, ...] = ()
    """By stage: a number that changes as long as its step makes progress."""
    unseen: frozenset[int] = frozenset()
    """Stages that others report as served while we see no replica ourselves."""
    unlinked: frozenset[PeerId] = frozenset()
    """Live members known only from adverts."""
    reached: Mapping[PeerId, int] = field(default_factory=dict)
    """Of the peers in ``eras``: the newest version that a seat of theirs serves."""
    is_gone: Callable[[PeerId], bool] = lambda peer: False
    """Whether a member's process has certainly ended."""
    serving: tuple[frozenset[PeerId], ...] = ()
    """By stage: the live replicas of our lineage."""
    heard: Callable[[], int] = lambda: 0
    """The newest version that a linked peer serves, also one whose advert does not count."""
    ended: Callable[[], int] = lambda: 0
    """The number of the electors of a seat of ours, if the processes of too many have ended for a
    majority; else 0."""


@dataclass(frozen=True, slots=True)
class Adopt:
    """Follow this lineage: each of our seats restarts at its version."""

    lineage: Lineage
    reason: str
    ours: bool = False
    """Whether we have decided it ourselves."""
    given_up: GivenUp | None = None
    """What we give up for it; None: it goes on from what we have made, or undoes little of it."""


@dataclass(frozen=True, slots=True)
class GivenUp:
    """Our line of the run, which ends where it has met another one."""

    version: int
    """Its last."""
    steps: int
    """Those that the members of the other line have had no part in."""
    members: tuple[PeerId, ...]
    """Of the other line."""
    reached: int
    """The other line's version."""
    fetched: tuple[Copy, ...]
    """Its state, as it is kept from now on. All other copies on our disk are set aside."""


@dataclass(frozen=True, slots=True)
class FetchLine:
    """Fetch and verify copies of another line, and call ``fetched`` or ``not_fetched``; our own
    line goes on meanwhile."""

    lineage: Lineage
    copies: tuple[Copy, ...]
    donors: tuple[PeerId, ...]
    within_s: float = FETCH_S
    """Seconds after which all of them are here, or it has failed."""


@dataclass(frozen=True, slots=True)
class SaveNow:
    """Write a checkpoint of the version that each of our seats serves."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """Why the run does not go on yet."""

    what: str
    """The condition it waits for, in words: ``for a majority of the swarm``."""
    until: float | None = None
    """When it goes on without those it waits for, monotonic seconds; None: not before they come."""


RecoveryEffect = Effect | Adopt | FetchLine | SaveNow


class Recovery:
    """See the module's docstring.

    Args:
        me: our id.
        stages: number of stages.
        checkpoint_every: steps between two checkpoints.
        lineage: what we followed when we were last here.
        seq: that of our first record; has to rise over restarts (unix milliseconds do).
        steps: of the whole run: there is no later version.
        evidence: the peers that we have worked with, and how far the run was then.
        founder: of the run.
    """

    def __init__(
        self,
        me: PeerId,
        stages: int,
        checkpoint_every: int,
        lineage: Lineage = SEED,
        seq: int = 0,
        steps: int = MAX_STEP,
        evidence: Evidence | None = None,
        founder: PeerId | None = None,
    ) -> None:
        self._me, self._stages, self._every, self._seq = me, stages, checkpoint_every, seq
        self._founder, self._meetings = founder, Meetings()
        self._fetching: FetchLine | None = None
        self._fetching_since = 0.0
        self._fetched: tuple[Copy, ...] = ()
        self._fetched_of: Lineage | None = None
        self._failures = 0
        self._refused: dict[Lineage, float] = {}
        """Lines for which ours is not given up, nor followed anew, and until when."""
        self._greater_since: float | None = None
        """Since when a line is there that stands before ours."""
        self.steps = steps
        """An amendment may change it."""
        self.evidence = Evidence() if evidence is None else evidence
        self._now = 0.0
        self._closed_since: float | None = None
        """Since when we wait to know where the run goes on: since the last known member came
        back."""
        self._back: set[PeerId] = set()
        self._unmet_since: float | None = None
        """Since when no member is here that we have worked with."""
        self._stalled_since: float | None = None
        """Since when we do not train."""
        self._rose_at: float | None = None
        """When a version of our lineage was last seen that is newer than any before."""
        self._refresh_at: float | None = None
        self.lineage = lineage
        self.open = False
        """Whether it is settled from which version a stage without state begins."""
        self._stored: dict[PeerId, Stored] = {}
        self._context = RecoveryContext()
        self._newest = 0
        """Newest version of our lineage that we have seen served."""
        self._waypoint: tuple[int, int, tuple[bytes, ...], frozenset[PeerId]] | None = None
        """The end of our chain of waypoints: era, version, hashes by stage, members."""
        self._seen: dict[int, int] = {}
        """The same by stage."""
        self._changed_at = 0.0
        self._live_at = 0.0
        self._troubled_since: float | None = None
        self._troubled_at: float | None = None
        self._alone_since: float | None = None
        """Since when too few electors of our seats are left to close a step."""
        self._asked_to_save = False
        self._still: tuple[object, ...] = ()
        self._still_since = 0.0
        """Since when nothing has come of any stage's step."""
        self._behind_since: dict[int, tuple[int, int, float]] = {}
        """Version, how far its step is, and since when that has been so; by stage."""
        self._last_replicas: dict[int, frozenset[PeerId]] = {}
        """By stage: the replicas that were there last."""
        self._closed_at: dict[int, float] = {}
        self._step_s = 0.0
        self._said = ""
        self.waiting: Waiting | None = None
        """The condition before the run continues from copies; None: there is none."""
        self._due: float | None = None

    # --- inputs ------------------------------------------------------------------------------

    def set_copies(self, copies: Iterable[Copy], now: float) -> list[RecoveryEffect]:
        """Take what is on our disk."""
        newest_first = sorted(set(copies), key=lambda copy: -copy.version)[:MAX_COPIES]
        own = Stored(self.lineage, tuple(sorted(newest_first)))
        if self._stored.get(self._me) == own:
            return []
        self._changed_at = now
        return [self._publish(own, now), *self._look(now)]

    def _publish(self, own: Stored, now: float) -> Publish:
        self._stored[self._me] = own
        self._seq += 1
        self._refresh_at = now + REFRESH_S
        return Publish(STORED, self._me, self._seq, encode_stored(own))

    def receive(self, author: PeerId, stored: Stored, now: float) -> list[RecoveryEffect]:
        """Take another's stored record.

        Args:
            author: its author.
            stored: the record.
            now: monotonic seconds.
        """
        if author == self._me or self._stored.get(author) == stored:
            return []
        self._stored[author] = stored
        self.evidence.heard(author, stored)
        self._changed_at = now
        return self._look(now)

    def fetched(self, now: float) -> list[RecoveryEffect]:
        """The copies of the last ``FetchLine`` are here, each as it was named."""
        if (wanted := self._fetching) is not None:
            self._fetching, self._failures = None, 0
            self._fetched_of, self._fetched = wanted.lineage, wanted.copies
        return self._look(now)

    def not_fetched(self, now: float) -> list[RecoveryEffect]:
        """They cannot be had, or are not what was named."""
        if (wanted := self._fetching) is not None:
            self._fetching, self._failures = None, self._failures + 1
            slow = now >= self._fetching_since + wanted.within_s
            if slow:
                self._meetings.too_slow(wanted.lineage)
            if slow or self._failures >= MOST_FAILURES:
                self._refused[wanted.lineage], self._failures = now + REFUSED_S, 0
        return self._look(now)

    def closed(
        self,
        stage: int,
        version: int,
        state: bytes,
        with_whom: Iterable[PeerId],
        now: float,
        electors: Collection[PeerId] = (),
    ) -> bool:
        """One of our seats, in our lineage, has closed a step with the work of these peers; return
        whether the evidence should be saved.

        Args:
            stage: the stage.
            version: the new version.
            state: its hash.
            with_whom: peers whose work is in the step.
            now: monotonic seconds.
            electors: that its decree names.
        """
        others = [peer for peer in with_whom if peer != self._me]
        news = self.evidence.closed(stage, version, state, others, now, electors)
        for peer in others:
            if peer in self._stored:
                self.evidence.heard(peer, self._stored[peer])
        return news

    def certify(
        self,
        era: int,
        version: int,
        hashes: Sequence[bytes],
        peers: Collection[PeerId],
        now: float,
    ) -> list[RecoveryEffect]:
        """Take the end of a chain of waypoints: of its lineage and version no other state counts,
        and to a newcomer the members that it names are proven.

        Args:
            era: of its lineage.
            version: the certified version.
            hashes: of its state, by stage.
            peers: the replicas that it names.
            now: monotonic seconds.
        """
        self._waypoint = era, version, tuple(hashes), frozenset(peers) - {self._me}
        self._begin_certified()
        return self._look(now)

    def proves(self, peer: PeerId) -> bool:
        """Whether work has proven a peer: ours with it, or the newest waypoint names it, for which
        most witnesses of its stage and of those beside have signed. Which copies count, and who
        has a voice, goes by our own work."""
        return self.evidence.proves(peer) or (
            self._waypoint is not None and peer in self._waypoint[3]
        )

    def _begin_certified(self) -> None:
        if self._waypoint is not None and not self.evidence.worked:
            _, version, _, peers = self._waypoint
            self.evidence.certify(version, peers)

    def _certified(self, version: int) -> tuple[bytes, ...]:
        """Return the certified hashes of a version of our lineage, by stage; none if there are none
        of it."""
        if self._waypoint is None or self._waypoint[:2] != (self.lineage.era, version):
            return ()
        return self._waypoint[2]

    def begun_with(self, stage: int, *, had: bool, now: float) -> list[RecoveryEffect]:
        """Note whether the state with which a stage begins was had from those who name it. If it
        was not, again and again, the run goes on at a version that others have."""
        named_by = [p for p in holders(self.stored_live(), self.lineage, stage) if p != self._me]
        (self.evidence.had if had else self.evidence.not_had)(named_by)
        return self._look(now)

    def forget(self, author: PeerId) -> None:
        """A record expired."""
        if author != self._me:
            self._stored.pop(author, None)

    def versions(self, view: SwarmView) -> tuple[int | None, ...]:
        """Return by stage the newest version that is served there (None: nobody does).

        If only one member is left, its version counts up to ``AHEAD_STEPS`` past what we have made
        ourselves: no stage is further ahead.
        """
        view = self.evidence.vetted(view)
        said = {r.peer: r.version for stage in range(self._stages) for r in view.serving(stage)}
        alone = len(said) == 1 and self.evidence.worked
        made = max(self.evidence.version, said.get(self._me, 0))
        most = min(self.steps, made + AHEAD_STEPS) if alone else self.steps
        return tuple(
            min(view.committed(stage), most) if view.serving(stage) else None
            for stage in range(self._stages)
        )

    def update(self, context: RecoveryContext, now: float) -> list[RecoveryEffect]:
        """Take a new view of the swarm."""
        if context.live != self._context.live:
            self._changed_at = self._live_at = now
            back = set(filter(self.evidence.proves, context.live))
            if not back <= self._back:
                self._closed_since = now
            self._back |= back
        self._now = now
        self._context = context
        served = [version for version in context.versions if version is not None]
        if served and self.lineage != SEED:
            self.open = True
            if max(served) > self._newest:
                self._rose_at = now
            self._newest = max(self._newest, *served)
            self.evidence.saw_training |= self._newest > 0
        for stage, version in enumerate(context.versions):
            self._seen[stage] = max(self._seen.get(stage, 0), version or 0)
        self._last_replicas |= {s: there for s, there in enumerate(context.serving) if there}
        self._time_steps(now)
        return self._look(now)

    def tick(self, now: float) -> list[RecoveryEffect]:
        """Act on deadlines that have passed."""
        own = self._stored.get(self._me)
        if own is None or self._refresh_at is None or now < self._refresh_at:
            return self._look(now)
        return [self._publish(own, now), *self._look(now)]

    def next_deadline(self) -> float | None:
        """Return when ``tick`` has something to do."""
        return min((at for at in (self._due, self._refresh_at) if at is not None), default=None)

    def has_left(self, peer: PeerId) -> bool:
        """Whether a peer follows a later lineage than ours, by its own record."""
        said = self._stored.get(peer)
        return said is not None and order(said.lineage) > order(self.lineage)

    def stored_live(self) -> dict[PeerId, Stored]:
        """Return the stored records of live members."""
        return {p: s for p, s in self._stored.items() if p in self._context.live or p == self._me}

    def newest_whole(self) -> Lineage:
        """Return the newest version that every stage has with live members, as far as we know. What
        only doubted members name comes last."""
        live, seen = self.stored_live(), (self._stages, self._reached())
        sure = {peer: said for peer, said in live.items() if not self.evidence.doubts(peer)}
        found = self._claims(sure, self.lineage).newest_whole(*seen)
        if found.version or len(sure) == len(live):
            return found
        return self._claims(live, self.lineage).newest_whole(*seen)

    def _claims(self, stored: Mapping[PeerId, Stored], lineage: Lineage | None = None) -> Claims:
        return Claims(stored, lineage, self.weigh, self._me, self._has_voice)

    def _reached(self) -> int | None:
        """Return the newest version for which one witness is enough; None: any, because we have not
        seen the lineage trained."""
        seen = self.open or self.has_begun()
        return self._newest if seen else None

    def weigh(self, author: PeerId, copy: Copy) -> int:
        """Return the weight of an author's claim of a copy; 0: none.

        If we have worked with others, a stranger's claim counts only if one of them has named the
        same state, or for stages so far from ours that we cannot know their replicas.
        """
        evidence, certified = self.evidence, self._certified(copy.version)
        if copy.version > self.steps or evidence.denies(copy):
            return 0
        if certified and copy.hash != certified[copy.stage]:
            return 0
        if author == self._me or evidence.proves(author):
            return 3
        if evidence.vouches(copy, self.lineage):
            return 2
        far = author in self._context.eras and not evidence.is_near(copy.stage)
        return int(far or self._goes_by_strangers(self._now))

    def left_behind(self, stage: int) -> None:
        """Our seat in a stage was left behind: the stage is past the beginning of the lineage, even
        if nobody whom we see serves it, and may not be begun there once more."""
        self.evidence.reopened(stage)
        past = self.lineage.version + 1
        self._seen[stage] = max(self._seen.get(stage, 0), past)
        self._newest = max(self._newest, past)

    def has_passed(self, stage: int) -> bool:
        """Whether we have seen a stage past the beginning of the lineage."""
        return self._seen.get(stage, 0) > self.lineage.version

    def may_begin(self, stage: int, now: float) -> bool:
        """Whether a stage without state may begin where the lineage does: nobody has come for a
        moment who might be past that, and an elector of its first step is here."""
        settled = self.open and now >= self._live_at + SETTLE_S
        return settled and not self.has_passed(stage) and self._has_elector()

    def _has_elector(self) -> bool:
        here = {self._me, *(p for p in self._context.live if not self.has_left(p))}
        return not here.isdisjoint(map(PeerId, self.lineage.electors))

    # --- looking -----------------------------------------------------------------------------

    def _look(self, now: float) -> list[RecoveryEffect]:
        self._due = self.waiting = None
        self._now = now
        if not self._context.live:
            return []
        if self._closed_since is None:
            self._closed_since = now
        if not self._context.ended():
            self._alone_since = None
        elif self._alone_since is None:
            self._alone_since = now
        if self._is_healthy(now):
            self._stalled_since = None
        elif self._stalled_since is None:
            self._stalled_since = now
        if any(map(self.evidence.proves, self._linked())):
            self._unmet_since = None
        elif self._unmet_since is None:
            self._unmet_since = now
        if (other := self._to_follow(now)) is not None:
            return self._adopt(*other, now)
        if not self.open:
            return self._resume(now)
        gone = self._lost_stages() and self._is_stalled(now)
        made = self.newest_whole().version if gone else self._steps_made()
        if (line := self._greater(made, now)) is not None:
            return self._go_over(line, made, now)
        trouble = self._trouble(now)
        if not trouble:
            self._troubled_since, self._asked_to_save = None, False
            due = [self._due, self._still_since + self._vain_s()]
            due += [] if self._alone_since is None else [self._alone_since + ENDED_S]
            self._due = min((at for at in due if at is not None and at > now), default=None)
            return []
        if self._troubled_since is None:
            self._troubled_since = now
        self._troubled_at = now
        return self._roll_back(trouble, now)

    def _trouble(self, now: float) -> str:
        """Say in words why training cannot go on, or nothing."""
        if lost := self._lost_stages():
            return f"nobody alive has the state of stage {', '.join(map(str, lost))}"
        for stage, (step, _, since) in self._behind_since.items():
            if now >= since + self._stuck_s():
                return f"stage {stage} cannot close step {step}: what it needs of it is lost"
        if self._stands_still(now):
            return f"nothing has come of any step for {self._vain_s():.0f} s"
        if self._is_alone(now):
            return "most of those have gone who could have closed the next step"
        if not self.has_begun() and self._electors_have_left(now):
            return "those have gone, or serve another lineage, who could have closed the first step"
        return ""

    def _stands_still(self, now: float) -> bool:
        """Whether nothing moves though every stage is served: nobody has the commit of the step
        before, or those who elect are silent."""
        serves = any(self._me in there for there in self._context.serving)
        over = self._newest >= self.steps
        if over or not serves or None in self._context.versions:
            return False
        return now >= self._still_since + self._vain_s()

    def _vain_s(self) -> float:
        return max(IN_VAIN_S, STUCK_STEPS * self._step_s)

    def _is_alone(self, now: float) -> bool:
        """Whether the electors that are left close no step any more, and have been waited for."""
        since, electors = self._alone_since, self._context.ended()
        return since is not None and electors > 0 and now >= since + self._wait_for(electors)

    @staticmethod
    def _wait_for(electors: int) -> float:
        return 0.0 if electors <= FEW else ENDED_S

    def _unsaved(self) -> bool:
        """Whether we serve all stages at one version of which the disk lacks a copy."""
        versions, serving = self._context.versions, self._context.serving
        alone = bool(serving) and all(self._me in there for there in serving)
        saved = {copy.stage for copy in self._own_copies() if copy.version == versions[0]}
        return alone and len(set(versions)) == 1 and len(saved) < self._stages

    def _electors_have_left(self, now: float) -> bool:
        """Whether all electors of our lineage's first step have gone; or, for long, those that
        serve no other lineage are too few."""
        era, eras, gone = self.lineage.era, self._context.eras, self._context.is_gone
        electors = frozenset(map(PeerId, self.lineage.electors))
        left = [peer for peer in electors if not gone(peer)]
        here = [peer for peer in left if era in eras.get(peer, (era,))]
        return not left or (self._is_stalled(now) and not is_majority(here, electors, gone))

    def has_begun(self) -> bool:
        """Whether we have seen a step of our lineage closed."""
        return self._newest > self.lineage.version

    def _lost_stages(self) -> list[int]:
        """Return the stages whose state no live replica has."""
        versions, unseen = enumerate(self._context.versions), self._context.unseen
        lost = [stage for stage, seen in versions if seen is None and stage not in unseen]
        if not self.has_begun():
            lost = [stage for stage in lost if not self._can_begin(stage)]
        return lost

    def _may_return(self) -> bool:
        """Whether every lost stage has a replica that is only silent: it may come back as it was,
        from another network or a router that has started anew."""
        lost = self._lost_stages()
        gone = self._context.is_gone
        there = (self._last_replicas.get(stage, frozenset()) - {self._me} for stage in lost)
        return bool(lost) and all(any(not gone(peer) for peer in peers) for peers in there)

    def _can_begin(self, stage: int) -> bool:
        begin = self.lineage
        there = holders(self.stored_live(), begin, stage)
        if there and all(map(self.evidence.doubts, there)):
            return self.newest_whole().version in (0, begin.version)
        return not begin.version or bool(there)

    def _time_steps(self, now: float) -> None:
        """Note how long steps take, and which stages stay behind one next to them."""
        versions = self._context.versions
        last = versions[-1] if versions else None
        if last is not None and last not in self._closed_at:
            before = self._closed_at.get(last - 1)
            if before is not None:
                self._step_s = 0.7 * self._step_s + 0.3 * (now - before)
            self._closed_at = {last - 1: before or now, last: now}
        if (seen := (self.lineage, versions, self._context.moved)) != self._still:
            self._still, self._still_since = seen, now
        behind = {}
        for stage, version in enumerate(versions):
            near = [v for v in versions[max(0, stage - 1) : stage + 2] if v is not None]
            if version is not None and version < max(near):
                moved = self._context.moved[stage] if self._context.moved else 0
                known = self._behind_since.get(stage)
                same = known is not None and known[:2] == (version, moved)
                behind[stage] = known if known and same else (version, moved, now)
        self._behind_since = behind

    def _stuck_s(self) -> float:
        return max(STUCK_S, STUCK_STEPS * self._step_s)

    # --- deciding ----------------------------------------------------------------------------

    def _resume(self, now: float) -> list[RecoveryEffect]:
        """closed -> open: at the newest complete version, or at the seed if no member has a
        copy."""
        live = self._context.live
        if self._me not in self._stored:
            return []  # what we have ourselves could not be read yet
        if self._is_new():
            self._troubled_at = now  # whoever begins the run is followed
        if live - self._stored.keys():
            self._due = now + SETTLE_S
            latest = self._since(self._closed_since) + MAX_SETTLE_S
            if now < min(self._changed_at + SETTLE_S, latest):
                return []  # their records are on their way
        settled = min(self._changed_at + SETTLE_S, self._since(self._closed_since) + MAX_SETTLE_S)
        if self._context.eras and not self._goes_by_strangers(now) and not self._voters():
            # they may be what is left of the swarm
            settled = max(settled, self._since(self._unmet_since) + BRIEF_PATIENCE_S)
        if now < settled:
            self._due = settled
            self.waiting = Waiting("for what versions the others have", self._due)
            return []
        made = self._steps_made()
        if (line := self._greater(made, now)) is not None:
            return self._go_over(line, made, now)
        if self._troubled_since is None:
            self._troubled_since = now
        self._troubled_at = now
        trouble = NOTHING_YET if self._is_new() else "the swarm was shut down"
        return self._decide(trouble, settled, now)

    def _roll_back(self, trouble: str, now: float) -> list[RecoveryEffect]:
        since = self._troubled_since if self._troubled_since is not None else now
        if now < since + LOST_S:
            self._due = since + LOST_S
            return []
        if self._is_alone(now) and self._unsaved() and now < since + SAVE_S:
            self._due = since + SAVE_S
            said = self._wait(trouble, Waiting("for our own state to be written", self._due))
            asked, self._asked_to_save = self._asked_to_save, True
            return said if asked else [*said, SaveNow()]
        return self._decide(trouble, since + LOST_S, now)

    def _decide(self, trouble: str, since: float, now: float) -> list[RecoveryEffect]:
        """Begin the next lineage if it is our turn and enough of the run is there."""
        lonely = self._stands_still(now) and not self.has_begun()
        if not lonely and not self._context.quorum(now):
            self._due = now + LOST_S
            return self._wait(trouble, Waiting("for a majority of the swarm"))
        target = self.newest_whole()
        if not target.version and self._only_came():
            words = "for a member that has the run's state: it was trained before we came"
            return self._wait(trouble, Waiting(words))
        known = self._claims(self._stored, self.lineage).newest(self._reached())
        newest = max(self._newest, known)
        lost = newest - target.version
        patience_s = self._patience_s(lost, target.version)
        if (until := since + patience_s) > now:
            self._due = min(now + SETTLE_S, until)
            newer = f"version {newest}" if lost > 0 else "a newer one"
            here = f"version {target.version} is the newest that every stage has here"
            whom = f"for {self._awaited()} who may have {newer}"
            most = f"{patience_s:.0f} s"
            return self._wait(trouble, Waiting(f"{whom}; {here}", until), most)
        before = self._before_us()
        turn = until + TURN_S * len(before)
        if now < turn:
            self._due = turn
            self.waiting = Waiting(f"for {short(before[0])} to say where the run goes on", turn)
            return []
        if (line := self._greater(target.version, now, deciding=True)) is not None:
            return self._go_over(line, target.version, now)
        lineage = next_era(self.lineage, target, self._me, self._seq, self._first_electors())
        lost = max(newest, self.evidence.version) - target.version
        reason = trouble if self._is_new() else f"{trouble}; {_again(lost)}"
        return self._adopt(lineage, reason, now, ours=True)

    def _first_electors(self) -> tuple[PeerId, ...]:
        """Return the electors of a lineage that we decide: members with a voice that are here, but
        for those that serve another one: they go on in it."""
        era, eras = self.lineage.era, self._context.eras
        there = [p for p in self._linked() & self._stored.keys() if era in eras.get(p, (era,))]
        return first_electors([self._me, *filter(self._has_voice, there)])

    def _was_trained(self) -> bool:
        """Whether the run has versions, as far as we have ever seen or heard."""
        seen = max(self.evidence.version, self._newest, self._context.heard())
        return self.evidence.saw_training or seen > 0

    def _is_new(self) -> bool:
        """Whether the run has nothing yet: no version that we know of, and no copy."""
        return not (self._was_trained() or any(s.copies for s in self.stored_live().values()))

    def _only_came(self) -> bool:
        """Whether others have trained the run and we have no part in it: then we never begin it
        again. Only the founder does, or else one liar could keep a run from beginning."""
        part = self.evidence.worked or any(self._me in there for there in self._context.serving)
        return not part and self._me != self._founder and self._was_trained()

    def _before_us(self) -> list[PeerId]:
        """Return the members that may decide before us: those with a voice, and for one turn one
        linked stranger."""

        def by_rank(peer: PeerId) -> bytes:
            return rank("restore", self.lineage.era, peer)

        there = self._linked() & self._stored.keys()
        before = sorted((p for p in there if by_rank(p) < by_rank(self._me)), key=by_rank)
        voters = self._voters()
        known = [peer for peer in before if peer in voters]
        strangers = [peer for peer in before if peer not in voters]
        return [*known, *strangers[:1]][:MAX_TURNS]

    def _patience_s(self, lost: int, version: int) -> float:
        """Return how long to wait for copies that would save ``lost`` steps beyond ``version``.

        A wait costs more while others could train than after a shutdown, and saves nothing where
        there is nothing yet.
        """
        if self._is_new():
            return 0.0
        if self.open:
            if lost > MANY_CHECKPOINTS * self._every:
                return PATIENCE_S
            again_s = max(0, lost) * self._step_s
            return min(PATIENCE_S, SILENT_SHARE * again_s) if self._may_return() else 0.0
        last, here = self.evidence.last_electors, self.stored_live().keys()
        if version and lost <= self._every and last and not self._away():
            return 0.0
        if any(2 * len(electors & here) <= len(electors) for electors in last):
            return PATIENCE_S
        if lost <= 0:
            return 0.0
        return PATIENCE_S if lost > self._every else BRIEF_PATIENCE_S

    def _away(self) -> frozenset[PeerId]:
        """Return the absent electors of the newest decrees that we know: without them nobody has
        made a version that those who are here do not know of."""
        return frozenset[PeerId]().union(*self.evidence.last_electors) - self.stored_live().keys()

    def _awaited(self) -> str:
        """Name the absent members that may have newer copies."""
        names = sorted(map(short, self._away()))
        if not names or len(names) > MOST_NAMES:
            return "those"
        return f"{', '.join(names)},"

    # --- following ---------------------------------------------------------------------------

    def _linked(self) -> frozenset[PeerId]:
        return self._context.live - self._context.unlinked - {self._me}

    def _goes_by_strangers(self, now: float) -> bool:
        """Whether every linked member counts: we have worked with none, or have made no progress
        with those that we have worked with."""
        if not self.evidence.any:
            return True
        if not self.open:
            return self._unmet_since is not None and now >= self._unmet_since + BRIEF_PATIENCE_S
        return self._is_stalled(now)

    def _is_stalled(self, now: float) -> bool:
        """Whether we have made no progress for long with the members that we have worked with."""
        if self._stalled_since is None:
            return False
        begun = self.evidence.closed_at is not None
        if self.evidence.any and not begun and self._unmet_since is not None:
            return now >= max(self._stalled_since, self._unmet_since) + BRIEF_PATIENCE_S
        return now >= self._stalled_since + PATIENCE_S

    def _voters(self) -> frozenset[PeerId]:
        """Return the members whose lineage counts: the proven ones; if there are none, the serving
        ones; if there are none of these either, all linked ones.

        Newcomers that met no other member serve as well: they begin the run again from the seed. If
        nothing of our lineage has been made yet, followers of a later lineage count too, serving or
        not.
        """
        linked = self._linked()
        if not self._goes_by_strangers(self._now):
            return frozenset(filter(self.evidence.proves, linked))
        serving = linked & self._context.eras.keys()
        if serving and not self.has_begun():
            known, ours = linked & self._stored.keys(), order(self.lineage)
            serving |= {peer for peer in known if order(self._stored[peer].lineage) > ours}
        return serving or linked

    def _to_follow(self, now: float) -> tuple[Lineage, str] | None:
        """Return the lineage of others that we ought to be in, and why."""
        voters = self._voters()
        said = {p: self._stored[p].lineage for p in sorted(voters) if p in self._stored}
        apart = self._trained_apart()
        count = Counter(of for of in said.values() if of not in apart and self._is_credible(of))
        looks = not (self.open and (self._newest or self.evidence.version))
        serving = self._most_served(count, voters) if looks else None
        if serving is not None:
            lost = self.newest_whole().version - serving.version
            undone = self.open and serving.number < self.lineage.number
            if serving != self.lineage and lost <= self._every and not undone:
                self._troubled_at = None
                return serving, "this lineage is the one that trains"
            if not self.open:
                return None  # it may have been trained apart from ours
        if self._is_healthy(now):
            return None
        ours = order(self.lineage)
        later = [of for of in count if order(of) > ours and not self._is_refused(of, now)]
        if serving == self.lineage:
            later = [of for of in later if not self._would_come_back(of)]
        if later and self._may_leave(now):
            newest = max(later, key=order)
            most = 2 * count[newest] > len(voters) + (self.open or self.evidence.any)
            half = 2 * count[newest] >= len(voters) and self._would_join(newest, now)
            if most or half:
                return newest, "most volunteers follow this lineage"
        return self._decided(apart, now)

    def _would_come_back(self, lineage: Lineage) -> bool:
        """Whether we would leave a lineage at once for ours, in which most seats serve: as many
        roll-backs have led to both, and ours trains."""
        trains = self.lineage.era in self._eras_beyond(lineage.version)
        return trains and lineage.number == self.lineage.number

    def _eras_beyond(self, version: int) -> set[int]:
        """Return the lineages in which seats have gone on beyond a version."""
        reached = self._context.reached
        beyond = (eras for p, eras in self._context.eras.items() if reached.get(p, 0) > version)
        return {era for eras in beyond for era in eras}

    def _may_leave(self, now: float) -> bool:
        """Whether others' word is reason enough to leave our lineage: we see trouble too, have just
        come back, have not trained for long, or have nothing to judge it by."""
        has_part = self.open and self.evidence.any
        return not has_part or self._was_troubled(now) or self._is_stalled(now)

    def _would_join(self, lineage: Lineage, now: float) -> bool:
        """Whether half of the members with a voice are enough: we would choose it, too, and it is
        the next one. After a long standstill it may be any number of roll-backs after ours."""
        known = self._is_next(lineage) or self._is_stalled(now) or not self.evidence.any
        return known and self._would_choose(lineage)

    def _decided(self, apart: Collection[Lineage], now: float) -> tuple[Lineage, str] | None:
        """Return the next lineage, if another member has decided it and we would have too, and it
        is none of those that were trained apart from ours."""
        if not self._was_troubled(now):
            return None
        linked = self._linked()
        said = {self._stored[p].lineage: p for p in sorted(linked) if p in self._stored}
        for lineage in sorted(said, key=order, reverse=True):
            later = order(lineage) > order(self.lineage) and not self._is_refused(lineage, now)
            is_next = later and lineage not in apart and self._is_next(lineage)
            if is_next and self._is_credible(lineage) and self._would_choose(lineage):
                return lineage, f"{short(said[lineage])} decided it"
        return None

    def _is_refused(self, lineage: Lineage, now: float) -> bool:
        """Whether we have just left a lineage, or could not have its state: whatever led us there
        would lead us there again, and we would come back in turns."""
        return self._refused.get(lineage, now) > now

    def _was_troubled(self, now: float) -> bool:
        return self._troubled_at is not None and now < self._troubled_at + FOLLOW_S

    def _is_next(self, lineage: Lineage) -> bool:
        return lineage.number <= self.lineage.number + 1

    def _is_credible(self, lineage: Lineage, *, apart: bool = False) -> bool:
        """Whether there can be such a lineage, as far as we know; ``apart``: also one that was
        trained apart from ours, and may have made the versions that we have made."""
        if lineage == self.lineage:
            return True
        if lineage.era == self.lineage.era or not lineage.electors:
            return False  # an era has one beginning
        if lineage.version and not lineage.number:
            return False  # a run begins at the seed
        far = self.evidence.any and lineage.number > self.lineage.number + MAX_ERAS_MISSED
        if far or lineage.number > HIGHEST_NUMBER or lineage.version > self.steps:
            return False
        certified = self._certified(lineage.version)
        if certified and certified != lineage.hashes and self._is_next(lineage):
            return False  # one that comes after others may have made this version anew
        return apart or not self.evidence.contradicts(lineage)

    def _would_choose(self, lineage: Lineage) -> bool:
        """Whether nothing newer is whole, or nobody gives it, and it begins at the states that we
        believe, with electors most of whom are here."""
        if lineage.version < self.newest_whole().version and not self._begins_in_vain():
            return False
        here = ({self._me} | self._linked()).intersection(lineage.electors)
        if 2 * len(here) <= len(lineage.electors):
            return False
        version, reached = lineage.version, self._reached()
        claims = self._claims(self.stored_live())
        if reached is not None and version > reached and claims.witnesses(version) < 2:
            return False
        return not version or claims.hashes(version) == lineage.hashes

    def _begins_in_vain(self) -> bool:
        """Whether our lineage has begun and some stage has long been without its state: who tries
        to hold that stage knows better whether anybody gives it."""
        since = self._stalled_since
        lost = None in self._context.versions and not self.has_begun()
        return self.open and lost and since is not None and self._now >= since + IN_VAIN_S

    def _has_voice(self, author: PeerId) -> bool:
        """Whether an author has a voice: we know it, or every linked member counts."""
        if author == self._me or self.evidence.proves(author):
            return True
        return author in self._linked() and self._goes_by_strangers(self._now)

    def _is_healthy(self, now: float) -> bool:
        """Whether we train, or have seen every stage's last step of the run."""
        if not self.open or self._trouble(now):
            return False
        if all(self._seen.get(stage, 0) >= self.steps for stage in range(self._stages)):
            return True
        last = self.evidence.closed_at if self.evidence.worked else self._rose_at
        return last is not None and now < last + self._stuck_s()

    def _most_served(self, lineages: Counter[Lineage], voters: frozenset[PeerId]) -> Lineage | None:
        """Return the lineage in which most seats serve, if its beginning is known.

        An earlier one than ours counts only if it has gone on beyond the beginning of ours, because
        a replica that was suspended during the roll-back serves too, and so does a newcomer that
        began from the seed alone.
        """
        ours = self.lineage
        further = self._eras_beyond(ours.version)
        by_era = {
            lineage.era: lineage
            for lineage in [*lineages, ours]
            if order(lineage) >= order(ours) or lineage.era in further
        }
        serving = Counter(era for peer in voters for era in self._context.eras.get(peer, ()))
        known = [(count, era) for era, count in serving.items() if era in by_era]
        return by_era[max(known)[1]] if known else None

    # --- meeting another line ----------------------------------------------------------------

    def _lines(self, made: int) -> tuple[Line, list[Line]]:
        """Return our line, which goes on from the version ``made``, and those that linked members
        with a voice serve beside it.

        Of the other lines those members count alone, of ours all that serve it. So each side counts
        itself at least as high as the other side does, and never do both give up.
        """
        voters, served = self._those_we_may_meet(), dict[Lineage, int]()
        said = {p: self._stored[p].lineage for p in sorted(voters) if p in self._stored}
        for peer, lineage in said.items():
            if lineage != self.lineage and lineage.era in self._context.eras.get(peer, ()):
                version = self._context.reached.get(peer, 0)
                served[lineage] = max(version, served.get(lineage, 0))

        def members(of: Lineage) -> frozenset[PeerId]:
            return frozenset(peer for peer, lineage in said.items() if lineage == of)

        with_us = members(self.lineage).union({self._me}, *self._context.serving)
        ours = Line(self.lineage, with_us, made)
        apart = len(ours.members) < MANY
        return ours, [
            Line(lineage, members(lineage), steps)
            for lineage, steps in served.items()
            if steps <= self.steps and self._is_credible(lineage, apart=apart)
        ]

    def _those_we_may_meet(self) -> frozenset[PeerId]:
        """Return the linked members for whose line we may give up ours: if we train, only those
        that we have worked with, and those with the founder; whoever has worked with nobody, or
        has not trained for long, believes all, the founder only until a checkpoint is at stake."""
        if not self.open:
            return self._voters()
        linked = self._linked()
        if self._is_stalled(self._now):
            return linked
        alone_for_long = self._me == self._founder and self._steps_made() > self._every
        if self.evidence.any_proven or alone_for_long:
            founders, stored = self._founders(), self._stored
            with_founder = {p for p in linked & stored.keys() if stored[p].lineage == founders}
            return frozenset(filter(self.evidence.proves, linked)) | with_founder
        return linked

    def _founders(self) -> Lineage | None:
        """Return the lineage that the founder follows; None: it is not here, or that was not begun
        apart from ours."""
        founder = self._founder
        if founder is None or founder not in self._linked() & self._stored.keys():
            return None
        lineage = self._stored[founder].lineage
        common = min(lineage.version, self.lineage.version) or self.evidence.proves(founder)
        return None if common or lineage == self.lineage else lineage

    def _comes_first(self, line: Line) -> bool:
        """Whether a line has begun apart from ours, is the founder's, and has a checkpoint: then it
        stands, however far ours has gone."""
        apart = line.lineage == self._founders() and not self._shared(line)
        return apart and line.steps > self._every

    def _steps_made(self) -> int:
        """Return the newest version of our line: one that is served, or of which we have a copy;
        whoever has the other stages may come back."""
        own = (copy.version for copy in self._own_copies())
        served = (version for version in self._context.versions if version is not None)
        made = max([self.lineage.version, *own, *served])
        if not self.open or self._lost_stages():
            made = max(made, self.newest_whole().version)
        return made

    def _own_copies(self) -> tuple[Copy, ...]:
        return self._stored.get(self._me, Stored()).copies

    def _trained_apart(self) -> frozenset[Lineage]:
        """Return the lineages beside which we have made steps that their members have had no part
        in; for who comes back, more than a checkpoint interval. We go over to these only as to a
        line that stands before ours: their members may be about to come over to us."""
        if not self.evidence.worked:
            return frozenset()
        _, others = self._lines(0)
        if not others:
            return frozenset()
        made, few = self._steps_made(), AHEAD_STEPS if self.open else self._every
        return frozenset(
            line.lineage
            for line in others
            if made > max(self._shared(line), line.lineage.version) + few
        )

    def _shared(self, line: Line) -> int:
        """Return the version up to which ours and another line are one, as far as we know."""
        begun = min(self.lineage.version, line.lineage.version)
        return max(begun, self.evidence.together(line.members))

    def _greater(self, made: int, now: float, *, deciding: bool = False) -> Line | None:
        """Return the line for which ours is given up, if ours goes on from the version ``made``.

        Whoever comes back and is a checkpoint interval ahead of it at most joins it all the same.

        Args:
            made: our version.
            now: monotonic seconds.
            deciding: whether we would begin anew now, without those of our line that are away.
        """
        ours, others = self._lines(made)
        self._meetings.see(others, now)
        self._refused = {of: until for of, until in self._refused.items() if until > now}
        more = 0 if self.open else self._every
        found = [
            line
            for line in others
            if self._may_join(line, now, deciding=deciding)
            and (
                self._comes_first(line)
                or replace(line, steps=line.steps + more).stands_before(ours, self._founder)
            )
        ]
        # A state that is here comes first, or else two lines could take turns in being fetched.
        here = [line for line in found if line.lineage == self._fetched_of]
        best = first(here or found, self._founder)
        if self.open and (due := self._meetings.next_deadline(now)) is not None:
            self._due = due
        bound = len(ours.members) >= MANY and not (best and self._comes_first(best))
        if best is None or (bound and not self._may_leave_for(best.lineage, now)):
            self._greater_since = None
            return None
        if self._greater_since is None:
            self._greater_since = now
        return best

    def _may_leave_for(self, lineage: Lineage, now: float) -> bool:
        """Whether enough have left our lineage for another one: a majority of the electors of a
        plan of ours; anybody's word if we have just come back, or have not trained for long."""
        if not self.open or self._is_stalled(now):
            return True
        follow = {peer for peer, said in self._stored.items() if said.lineage == lineage}
        return self.evidence.seconded(follow.__contains__, self._context.is_gone)

    def _may_join(self, line: Line, now: float, *, deciding: bool) -> bool:
        """Whether a line is reason enough to give up ours if it stands before ours. One that has
        not come as far as where ours begins was perhaps left behind by a roll-back; it is joined
        only if nothing is left of ours."""
        if self._is_refused(line.lineage, now):
            return False
        if self.open:
            return self._meetings.trains(line, self.steps, now)
        further = line.steps > self.lineage.version
        return deciding or further or order(line.lineage) > order(self.lineage)

    def _go_over(self, line: Line, made: int, now: float) -> list[RecoveryEffect]:
        """Have the state of a line that stands before ours fetched, then give up ours; at once, if
        there is nothing to give up."""
        stages = self._stages_with_state()
        by_steps = len(line.members) < MANY and not self._comes_first(line)
        least = made - MANY_CHECKPOINTS * self._every if by_steps else 0
        ready = self._fetched_of == line.lineage and all(c.version >= least for c in self._fetched)
        have = {copy.stage for copy in self._fetched} if ready else set[int]()
        if stages <= have or not self._steps_made():
            return self._give_up(line, now)
        names = ", ".join(map(short, sorted(line.members)[:MOST_NAMES]))
        waiting = Waiting(f"for the state of {names}, which has gone further than we apart from us")
        said = self._wait("two lines of this run have met", waiting)
        healthy = self._is_healthy(now)
        if healthy:
            self.waiting = None  # ours goes on until then
        if self._fetching is not None and healthy:
            return said
        wanted = None if self._fetching is not None else self._copies_of(line, stages, least)
        if wanted is not None:
            self._fetching, self._fetching_since = wanted, now
            self._fetched_of, self._fetched = None, ()
            return [*said, wanted]
        self._due = until = self._since(self._greater_since) + PATIENCE_S
        if now >= until:
            self._refused[line.lineage] = now + REFUSED_S
        return said

    def _stages_with_state(self) -> frozenset[int]:
        """Return the stages whose state we serve; if we serve none, those of our copies."""
        served = {s for s, there in enumerate(self._context.serving) if self._me in there}
        return frozenset(served or {copy.stage for copy in self._own_copies()})

    def _copies_of(self, line: Line, stages: Collection[int], least: int) -> FetchLine | None:
        """Return the copy of each stage that most members of a line name, of these the newest;
        None: there is none yet that is new enough."""
        copies, donors = list[Copy](), set[PeerId]()
        said = {peer: self._stored[peer].copies for peer in line.members}
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
        within_s = self._meetings.fetch_s(line.lineage)
        return FetchLine(line.lineage, tuple(copies), tuple(sorted(donors)), within_s)

    def _give_up(self, line: Line, now: float) -> list[RecoveryEffect]:
        version = self._steps_made()
        fetched = self._fetched if self._fetched_of == line.lineage else ()
        steps, members = max(0, version - self._shared(line)), tuple(sorted(line.members))
        given_up = GivenUp(version, steps, members, line.steps, fetched)
        self._fetched_of, self._fetched, self._greater_since = None, (), None
        return self._adopt(line.lineage, "", now, given_up=given_up)

    # --- beginning ---------------------------------------------------------------------------

    def _adopt(
        self,
        lineage: Lineage,
        reason: str,
        now: float,
        *,
        ours: bool = False,
        given_up: GivenUp | None = None,
    ) -> list[RecoveryEffect]:
        if given_up is None:
            self.evidence.begin(self.lineage, lineage)
            self.evidence.begins_with(lineage.version, self._makers(lineage))
        else:
            self.evidence.go_over(given_up.reached)
        self._refused[self.lineage] = now + REFUSED_S
        begins = "the run's history begins" if self.lineage == SEED else "beginning anew"
        was_open, self.lineage, self.open = self.open, lineage, True
        self._begin_certified()
        self._newest, self._seen = lineage.version, {}
        self._troubled_since, self._behind_since, self._closed_at = None, {}, {}
        self._alone_since, self._asked_to_save = None, False
        self._rose_at = None
        live, unlinked = self._context.live, self._context.unlinked
        heard = self._context.heard
        self._context = RecoveryContext(
            live, (None,) * self._stages, unlinked=unlinked, heard=heard
        )
        self._said = ""
        effects: list[RecoveryEffect] = []
        if given_up is None:
            words = f"{begins} at version {lineage.version}: {reason}"
            effects.append(Explain("swarm", words, "warning" if was_open else "info"))
        if (own := self._stored.get(self._me)) is not None:
            kept = tuple(copy for copy in own.copies if copy.version <= lineage.version)
            if given_up is not None and given_up.fetched:
                kept = tuple(sorted(given_up.fetched))
            effects.append(self._publish(Stored(lineage, kept), now))
        return [*effects, Adopt(lineage, reason, ours, given_up)]

    def _makers(self, begin: Lineage) -> frozenset[PeerId]:
        """Return the members whose copies a lineage begins with, if we have none ourselves."""
        if any(copy.version == begin.version for copy in self._own_copies()):
            return frozenset()
        there = self.stored_live()
        return frozenset(p for s in range(self._stages) for p in holders(there, begin, s))

    @staticmethod
    def _since(at: float | None) -> float:
        return 0.0 if at is None else at

    def _wait(self, trouble: str, waiting: Waiting, most: str = "") -> list[RecoveryEffect]:
        """Wait, and explain once for what and how long at most."""
        self.waiting = waiting
        words = f"{trouble}; waiting {f'up to {most} ' if most else ''}{waiting.what}"
        if words == self._said:
            return []
        self._said = words
        return [Explain("swarm", words, "warning" if self.open else "info")]


def _again(lost: int) -> str:
    if lost == 1:
        return "1 step is done again"
    return f"{lost} steps are done again" if lost > 0 else "no newer version is known"
