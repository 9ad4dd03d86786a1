"""What a volunteer knows of the run: who has a voice, which copies count, how far its lineage is.

Any peer can publish a record. So only members whose work we have counted (``evidence``), and
ourselves, have a voice. A member that has never worked with another, or meets none of them, or has
made no step for long, believes the members that it is linked with instead.

State: the records of all members, our view of the swarm, our lineage, and how far it was seen. The
machine writes it, and the parts beside it read it. Times are monotonic seconds.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from protocol.decree.decree import is_majority
from protocol.ids import PeerId
from protocol.limits import MAX_STEP
from protocol.recovery.choice import SEED, Claims, holders, order
from protocol.recovery.effects import RecoveryContext
from protocol.recovery.evidence import AHEAD_STEPS, Evidence
from protocol.recovery.stored import Copy, Lineage, Stored
from protocol.view import SwarmView
from protocol.waypoints.chain import Waypoint
from protocol.wire.fields import HIGHEST_NUMBER, MAX_ERAS_MISSED

PATIENCE_S: Final = 120.0
"""How long a newer version than the best complete one is waited for: its holder may come back. A
replica that has not closed a step for this long has little to lose and trusts strangers."""
BRIEF_PATIENCE_S: Final = 15.0
"""The same wait if it can save one checkpoint interval at most; and how long a returning replica
waits for peers it has worked with before it trusts strangers."""
MANY_CHECKPOINTS: Final = 2
"""A roll-back by more checkpoint intervals than this waits ``PATIENCE_S`` for missing copies. Nor
are steps given up for copies that are so much older, unless many members have made them."""


def since(before: float | None, now: float, *, holds: bool) -> float | None:
    """Return since when something holds; None: it does not."""
    if not holds:
        return None
    return now if before is None else before


@dataclass(eq=False)
class Knowledge:
    """See the module's docstring."""

    me: PeerId
    stages: int
    every: int
    """Steps between two checkpoints."""
    lineage: Lineage = SEED
    """At first what we followed when we were last here."""
    steps: int = MAX_STEP
    """Of the whole run: there is no later version. An amendment may change it."""
    evidence: Evidence = field(default_factory=Evidence)
    founder: PeerId | None = None
    """Of the run."""
    open: bool = field(default=False, init=False)
    """Whether it is settled from which version a stage without state begins."""
    stored: dict[PeerId, Stored] = field(default_factory=dict, init=False)
    context: RecoveryContext = field(default=RecoveryContext(), init=False)
    now: float = field(default=0.0, init=False)
    stalled_since: float | None = field(default=None, init=False)
    """Since when we do not train."""
    unmet_since: float | None = field(default=None, init=False)
    """Since when no member is here that we have worked with."""
    refused: dict[Lineage, float] = field(default_factory=dict, init=False)
    """Lines that we have left, or whose state could not be had, and until when ours is not given
    up for them; only who sees that one trains goes back to it."""
    _seen: dict[int, int] = field(default_factory=dict, init=False)
    """By stage: the newest version of our lineage that we have seen served, or made."""
    _waypoint: Waypoint | None = field(default=None, init=False)

    # --- what the machine notes --------------------------------------------------------------

    def look_at(self, context: RecoveryContext) -> bool:
        """Take a new view of the swarm; return whether our lineage has gone on."""
        self.context, before = context, self.newest
        for stage, version in enumerate(context.versions):
            if version is not None and self.lineage != SEED:
                self.reach(stage, version)
                self.open = True
        self.evidence.saw_training |= self.newest > 0
        return self.newest > before

    def reach(self, stage: int, version: int) -> None:
        """A stage has come to a version of our lineage."""
        self._seen[stage] = max(self._seen.get(stage, 0), version)

    def left_behind(self, stage: int) -> None:
        """Our seat in a stage was left behind: the stage is past the beginning of the lineage, even
        if nobody whom we see serves it, and may not be begun there once more."""
        self.evidence.reopened(stage)
        self.reach(stage, self.lineage.version + 1)

    def certify(self, waypoint: Waypoint) -> None:
        """Take a waypoint: of its lineage and version no other state counts, and to a newcomer the
        members that it names are proven."""
        self._waypoint = waypoint
        if not self.evidence.worked:
            self.evidence.certify(waypoint.version, waypoint.peers - {self.me})

    def begin(self, lineage: Lineage) -> None:
        """Follow another lineage, of which nothing has been seen yet."""
        self.lineage, self.open, self._seen = lineage, True, {}
        before, nobody = self.context, (None,) * self.stages
        self.context = RecoveryContext(
            before.live, nobody, unlinked=before.unlinked, heard=before.heard
        )

    # --- peers -------------------------------------------------------------------------------

    def linked(self) -> frozenset[PeerId]:
        """Return the other members that we are linked with."""
        return self.context.live - self.context.unlinked - {self.me}

    def proves(self, peer: PeerId) -> bool:
        """Whether work has proven a peer: ours with it, or the newest waypoint names it, for which
        most witnesses of its stage and of those beside have signed. Which copies count, and who
        has a voice, goes by our own work."""
        certified = self._waypoint is not None and peer in self._waypoint.peers
        return certified or self.evidence.proves(peer)

    def has_left(self, peer: PeerId, lineage: Lineage | None = None) -> bool:
        """Whether a peer follows a later lineage than this one, or ours, by its own record."""
        said, of = self.stored.get(peer), self.lineage if lineage is None else lineage
        return said is not None and order(said.lineage) > order(of)

    def is_stalled(self) -> bool:
        """Whether we have made no progress for long with the members that we have worked with."""
        if self.stalled_since is None:
            return False
        begun = self.evidence.closed_at is not None
        if self.evidence.any and not begun and self.unmet_since is not None:
            return self.now >= max(self.stalled_since, self.unmet_since) + BRIEF_PATIENCE_S
        return self.now >= self.stalled_since + PATIENCE_S

    def goes_by_strangers(self) -> bool:
        """Whether every linked member counts: we have worked with none, or have made no progress
        with those that we have worked with."""
        if not self.evidence.any:
            return True
        if not self.open:
            return self.unmet_since is not None and self.now >= self.unmet_since + BRIEF_PATIENCE_S
        return self.is_stalled()

    def has_voice(self, author: PeerId) -> bool:
        """Whether an author has a voice: we know it, or every linked member counts."""
        if author == self.me or self.evidence.proves(author):
            return True
        return author in self.linked() and self.goes_by_strangers()

    def voters(self) -> frozenset[PeerId]:
        """Return the linked members that have a voice."""
        return frozenset(filter(self.has_voice, self.linked()))

    def lineages_of(self, peers: frozenset[PeerId]) -> dict[PeerId, Lineage]:
        """Return the lineages that these follow, by their own records."""
        return {peer: self.stored[peer].lineage for peer in sorted(peers & self.stored.keys())}

    def has_part(self, peer: PeerId, lineage: Lineage) -> bool:
        """Whether a peer that follows a lineage has a state of it: it serves there, or names a copy
        of its beginning. Who has none only repeats what it has heard."""
        if not lineage.version or lineage.era in self.context.eras.get(peer, ()):
            return True
        begins = (Copy(s, lineage.version, of) for s, of in enumerate(lineage.hashes))
        return not set(self.stored[peer].copies).isdisjoint(begins)

    # --- copies ------------------------------------------------------------------------------

    def stored_live(self) -> dict[PeerId, Stored]:
        """Return the stored records of live members."""
        return {p: s for p, s in self.stored.items() if p in self.context.live or p == self.me}

    def own_copies(self) -> tuple[Copy, ...]:
        """Return what is on our disk."""
        return self.stored.get(self.me, Stored()).copies

    def newest_whole(self) -> Lineage:
        """Return the newest version that every stage has with live members, as far as we know. What
        only doubted members name comes last."""
        live, seen = self.stored_live(), (self.stages, self.reached())
        sure = {peer: said for peer, said in live.items() if not self.evidence.doubts(peer)}
        found = self.claims(sure, self.lineage).newest_whole(*seen)
        if found.version or len(sure) == len(live):
            return found
        return self.claims(live, self.lineage).newest_whole(*seen)

    def claims(self, stored: Mapping[PeerId, Stored], lineage: Lineage | None = None) -> Claims:
        """Return what these say of versions, of one ``lineage`` or of any."""
        return Claims(stored, lineage, self.weigh, self.me, self.has_voice)

    def reached(self) -> int | None:
        """Return the newest version for which one witness is enough; None: any, because we have not
        seen the lineage trained."""
        return self.newest if self.open or self.has_begun() else None

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
        if author == self.me or evidence.proves(author):
            return 3
        if evidence.vouches(copy, self.lineage):
            return 2
        far = author in self.context.eras and not evidence.is_near(copy.stage)
        return int(far or self.goes_by_strangers())

    def _certified(self, version: int) -> tuple[bytes, ...]:
        """Return the certified hashes of a version of our lineage, by stage; none if there are none
        of it."""
        found, of = self._waypoint, (self.lineage.era, version)
        return found.hashes if found is not None and (found.era, found.version) == of else ()

    # --- how far it is -----------------------------------------------------------------------

    def versions(self, view: SwarmView) -> tuple[int | None, ...]:
        """Return by stage the newest version that is served there (None: nobody does).

        What we serve ourselves needs nobody else to bear it out. If only one member is left, its
        version counts up to ``AHEAD_STEPS`` past what we have made: no stage is further ahead.
        """
        view = self.evidence.vetted(view)
        said = {r.peer: r.version for stage in range(self.stages) for r in view.serving(stage)}
        alone = len(said) == 1 and self.evidence.worked
        made = max(self.evidence.version, said.get(self.me, 0))
        most = min(self.steps, made + AHEAD_STEPS) if alone else self.steps
        versions = list[int | None]()
        for stage in range(self.stages):
            serving = view.serving(stage)
            ours = max((r.version for r in serving if r.peer == self.me), default=0)
            versions.append(min(max(view.committed(stage), ours), most) if serving else None)
        return tuple(versions)

    @property
    def newest(self) -> int:
        """The newest version of our lineage that we know of."""
        return max((self.lineage.version, *self._seen.values()))

    def has_begun(self) -> bool:
        """Whether we have seen a step of our lineage closed."""
        return self.newest > self.lineage.version

    def is_left(self) -> bool:
        """Whether our lineage cannot go on, as its electors say themselves: those of the next step
        of a stage that we serve, or of the first one while none is closed, are no majority without
        those that follow a later one. Of a stage that we have left we no longer know them."""
        served = {stage for stage, of in enumerate(self.context.serving) if self.me in of}
        named = [of for stage, of in self.evidence.elected.items() if stage in served]
        if not self.has_begun():
            named = [frozenset(map(PeerId, self.lineage.electors))]
        return any(
            not is_majority([peer for peer in one if not self.has_left(peer)], one)
            for one in named
            if one
        )

    def has_elector(self) -> bool:
        """Whether an elector of our lineage's first step is here, and follows no later one."""
        here = {self.me, *(peer for peer in self.context.live if not self.has_left(peer))}
        return not here.isdisjoint(map(PeerId, self.lineage.electors))

    def has_passed(self, stage: int) -> bool:
        """Whether we have seen a stage past the beginning of the lineage."""
        return self._seen.get(stage, 0) > self.lineage.version

    def is_over(self) -> bool:
        """Whether we have seen every stage's last step of the run."""
        return all(self._seen.get(stage, 0) >= self.steps for stage in range(self.stages))

    def lost_stages(self) -> list[int]:
        """Return the stages whose state no live replica has."""
        versions, unseen = enumerate(self.context.versions), self.context.unseen
        lost = [stage for stage, seen in versions if seen is None and stage not in unseen]
        if not self.has_begun():
            lost = [stage for stage in lost if not self._can_begin(stage)]
        return lost

    def _can_begin(self, stage: int) -> bool:
        begin = self.lineage
        there = holders(self.stored_live(), begin, stage)
        if there and all(map(self.evidence.doubts, there)):
            return self.newest_whole().version in (0, begin.version)
        return not begin.version or bool(there)

    def steps_made(self) -> int:
        """Return the newest version of our line: one that is served, or of which we have a copy;
        whoever has the other stages may come back."""
        own = (copy.version for copy in self.own_copies())
        served = (version for version in self.context.versions if version is not None)
        made = max([self.lineage.version, *own, *served])
        if not self.open or self.lost_stages():
            made = max(made, self.newest_whole().version)
        return made

    def was_trained(self) -> bool:
        """Whether the run has versions, as far as we have ever seen or heard."""
        seen = max(self.evidence.version, self.newest, self.context.heard())
        return self.evidence.saw_training or seen > 0

    def is_new(self) -> bool:
        """Whether the run has nothing yet: no version that we know of, and no copy."""
        return not (self.was_trained() or any(s.copies for s in self.stored_live().values()))

    # --- other lineages ----------------------------------------------------------------------

    def is_refused(self, lineage: Lineage) -> bool:
        """Whether we have just left a lineage, or could not have its state: whatever led us there
        would lead us there again, and we would come back in turns."""
        return self.refused.get(lineage, self.now) > self.now

    def is_next(self, lineage: Lineage) -> bool:
        """Whether no roll-back lies between a lineage and ours."""
        return lineage.number <= self.lineage.number + 1

    def is_credible(self, lineage: Lineage, *, apart: bool = False) -> bool:
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
        if certified and certified != lineage.hashes and self.is_next(lineage):
            return False  # one that comes after others may have made this version anew
        return apart or not self.evidence.contradicts(lineage)
