"""Why training cannot go on: a stage's state is lost, a step cannot be closed, or nothing moves.

State: how long steps take, since when which stage is behind or nothing moves, since when too few
electors are left, and since when there is trouble. Times are monotonic seconds.
"""

from typing import Final

from protocol.decree.decree import is_majority
from protocol.ids import PeerId
from protocol.pace import ANSWER_S, FORGET_S
from protocol.recovery.knowledge import BRIEF_PATIENCE_S, PATIENCE_S, Knowledge, since

FEW: Final = 2
"""Of so many electors one alone may be no majority: the other is not waited for."""
STUCK_STEPS: Final = 3.0
"""A replica that closed a step this recently, in usual steps or ``BRIEF_PATIENCE_S``, is healthy. A
stage that stays behind a neighbour for so long while nothing comes of its step can no longer close
it. Gradients died in the stage after it, or activations in the one before."""
IN_VAIN_S: Final = 300.0
"""A stage is given what it begins with in this time, or others may know that nobody has it. Nor
does any step take so long in which nothing moves."""


class Trouble:
    """See the module's docstring."""

    def __init__(self, known: Knowledge) -> None:
        self._known = known
        self.since: float | None = None
        """Since when there is trouble."""
        self.step_s = 0.0
        """How long a step usually takes."""
        self._alone_since: float | None = None
        """Since when too few electors are left to close a step."""
        self._rose_at: float | None = None
        """When a version of our lineage was last seen that is newer than any before."""
        self._near: dict[int, tuple[int, float]] = {}
        """By stage that is served: the newest version there or beside it, and since when it has not
        gone on: if a neighbour goes on, others have closed the step."""
        self._went_on: dict[tuple[int, PeerId], tuple[tuple[int, int], float]] = {}
        """By stage and replica: the stage's version and how much of the replica's step is there, at
        most until now, and since when."""
        self._began_at = 0.0
        """When the lineage began, has come to a newer version, or has had all its stages again."""
        self._last_replicas: dict[int, frozenset[PeerId]] = {}
        """By stage: the replicas that were there last."""
        self._closed_at: dict[int, float] = {}

    # --- what the machine notes --------------------------------------------------------------

    def view_changed(self, *, rose: bool) -> None:
        """The view of the swarm has changed; ``rose``: our lineage has gone on."""
        context, now = self._known.context, self._known.now
        if rose:
            self._rose_at = self._began_at = now
        self._last_replicas |= {s: there for s, there in enumerate(context.serving) if there}
        self._time_steps(now)
        self._note_progress()

    def _note_progress(self) -> None:
        """Note which stages are served again, and which replicas have gone on."""
        context, before, now = self._known.context, self._near, self._known.now
        versions, self._near = context.versions, {}
        for stage, version in enumerate(versions):
            if version is None:
                continue
            near = max(v for v in versions[max(0, stage - 1) : stage + 2] if v is not None)
            newest, since_s = before.get(stage, (-1, now))
            self._near[stage] = near, since_s if near <= newest else now
            for peer, moved in (context.moved[stage] if context.moved else {}).items():
                if (version, moved) > self._went_on.get((stage, peer), ((-1, 0), now))[0]:
                    self._went_on[stage, peer] = (version, moved), now
        if len(before) < len(self._near) == self._known.stages and not self._others_begin():
            self._began_at = now
        self._went_on = {
            of: (far, at)
            for of, (far, at) in self._went_on.items()
            if of[1] in context.live or now < at + self._vain_s()
        }

    def _time_steps(self, now: float) -> None:
        versions = self._known.context.versions
        last = versions[-1] if versions else None
        if last is None or last in self._closed_at:
            return
        before = self._closed_at.get(last - 1)
        if before is not None:
            self.step_s = 0.7 * self.step_s + 0.3 * (now - before)
        self._closed_at = {last - 1: before or now, last: now}

    def look(self) -> None:
        """Note whether electors have gone."""
        alone = self._waited_s() is not None
        self._alone_since = since(self._alone_since, self._known.now, holds=alone)

    def note(self, *, there: bool) -> None:
        """Note whether there is trouble."""
        self.since = since(self.since, self._known.now, holds=there)

    def begin(self) -> None:
        """Another lineage begins."""
        self.since = self._alone_since = self._rose_at = None
        self._closed_at, self._near, self._went_on = {}, {}, {}
        self._began_at = self._known.now

    # --- queries -----------------------------------------------------------------------------

    def words(self) -> str:
        """Say in words why training cannot go on, or nothing."""
        if lost := self._known.lost_stages():
            return f"no member has a whole copy of stage {', '.join(map(str, lost))}"
        for stage, (near, since_s) in self._near.items():
            step = self._known.context.versions[stage] or 0
            moved = (at for (of, _), (_, at) in self._went_on.items() if of == stage)
            if step < near and self._known.now >= max([since_s, *moved]) + self._stuck_s():
                return f"stage {stage} cannot close step {step}: what it needs of it is lost"
        if self.stands_still():
            return f"nothing has come of any step for {self._vain_s():.0f} s"
        if self.is_alone():
            return "most of those have gone who could have closed the next step"
        return ""

    def stands_still(self) -> bool:
        """Whether nothing moves though every stage is served, or nobody has its state, or it is
        served in another lineage, or no stage can begin because no elector is here: nobody has the
        commit of the step before, or those who elect are silent, or two have begun and neither has
        all stages."""
        known, lost = self._known, self._known.lost_stages()
        serves = any(known.me in there for there in known.context.serving)
        awaited = any(v is None and s not in lost for s, v in enumerate(known.context.versions))
        can_begin = known.has_begun() or known.has_elector()
        may_come = awaited and can_begin and not self._others_begin()
        if known.newest >= known.steps or not serves or may_come:
            return False
        return known.now >= self._still_since() + self._vain_s()

    def _still_since(self) -> float:
        """Return since when nothing has come of a step of ours, nor of the steps of two others: one
        alone might say for ever that something does."""
        me, at = self._known.me, dict[PeerId, float]()
        for (_, peer), (_, when) in self._went_on.items():
            at[peer] = max(when, at.get(peer, when))
        ours = at.pop(me, self._began_at)
        return max([self._began_at, ours, *sorted(at.values())[-2:][:1]])

    def _others_begin(self) -> bool:
        """Whether others have begun another lineage beside ours, of which we know no step: the
        stages that are awaited here may be theirs."""
        known, ours = self._known, self._known.lineage.era
        eras = (known.context.eras.get(peer, ()) for peer in known.linked())
        return not known.has_begun() and any(era != ours for of in eras for era in of)

    def is_alone(self) -> bool:
        """Whether the electors that are left close no step any more, and have been waited for: who
        was only started anew comes back and votes, and who serves another lineage may follow."""
        alone_at = self._alone_at()
        return alone_at is not None and self._known.now >= alone_at

    def is_healthy(self) -> bool:
        """Whether we train, or have seen every stage's last step of the run."""
        known = self._known
        if not known.open or self.words():
            return False
        if known.is_over():
            return True
        last = known.evidence.closed_at if known.evidence.worked else self._rose_at
        return last is not None and known.now < last + self._stuck_s()

    def lasts(self) -> bool:
        """Whether we cannot go on, and not only for a moment: hand-overs take one."""
        if self.since is None or not self._known.open:
            return self.since is not None
        return self._known.now >= self.since + ANSWER_S and bool(self.words())

    def may_return(self) -> bool:
        """Whether every lost stage has a replica that is only silent: it may come back as it was,
        from another network or a router that has started anew."""
        known, lost = self._known, self._known.lost_stages()
        there = (self._last_replicas.get(stage, frozenset()) - {known.me} for stage in lost)
        gone = known.context.is_gone
        return bool(lost) and all(any(not gone(peer) for peer in peers) for peers in there)

    def next_deadline(self) -> float | None:
        """Return when there may be trouble that no event shows."""
        due = (self._still_since() + self._vain_s(), self._alone_at())
        return min((at for at in due if at is not None and at > self._known.now), default=None)

    # --- inside ------------------------------------------------------------------------------

    def _alone_at(self) -> float | None:
        waited_s, alone_since = self._waited_s(), self._alone_since
        return None if waited_s is None or alone_since is None else alone_since + waited_s

    def _waited_s(self) -> float | None:
        """Return how long the electors are waited for who have gone, or, before the first step of
        a lineage, serve another one or follow a later one; None: enough are left."""
        known, gone = self._known, self._known.context.is_gone
        ended, elsewhere = known.context.ended(), False
        if not known.has_begun():
            era, eras = known.lineage.era, known.context.eras
            electors = frozenset(map(PeerId, known.lineage.electors))
            left = [peer for peer in electors if not gone(peer)]
            ended = ended or (0 if is_majority(left, electors) else len(electors))
            there = (peer for peer in left if not known.has_left(peer))
            here = [peer for peer in there if era in eras.get(peer, (era,))]
            elsewhere = not is_majority(here, electors)
        if ended:
            return 0.0 if ended <= FEW else FORGET_S
        return PATIENCE_S if elsewhere else None

    def _vain_s(self) -> float:
        return max(IN_VAIN_S, STUCK_STEPS * self.step_s)

    def _stuck_s(self) -> float:
        return max(BRIEF_PATIENCE_S, STUCK_STEPS * self.step_s)
