"""Rolling the whole swarm back together when the state of a stage is lost, and resuming a run.

Every volunteer says in its stored record which lineage it follows and which checkpoints it has.
From these, from its view of the swarm and from its own work (``knowledge``) it decides:

| what we have | what others show | what we do |
| --- | --- | --- |
| any | a lineage that we ought to be in (``following``) | begin where it does |
| a line of our own | another one stands before it (``lines``) | copy its state, then give up ours |
| a lineage that trains | no trouble (``trouble``) | train |
| trouble, or no lineage | they may have more, or decide before us (``deciding``) | wait |
| trouble, or no lineage | none of that | begin the next lineage |

The next lineage begins at the newest version that every stage has somewhere.

A run that has nothing yet is begun by a decision, too: whoever decides a lineage names the electors
of its first steps. Two that begin apart have two lineages, and one of them stands once they meet.

It decides only with a majority of the electors that have not ended, so at most one part of a swarm
that falls silent rolls back. Where too few electors are left to close a step, who is left begins a
lineage of its own, from the state that it serves. Times are monotonic seconds.
"""

from collections.abc import Collection, Iterable
from typing import Final

from protocol.effects import Explain, Publish
from protocol.ids import PeerId, short
from protocol.limits import MAX_ADVERT_TTL_S
from protocol.pace import ANSWER_S, ASIDE_S, FORGET_S, HEARD_S, RENEWALS, SAVE_S
from protocol.recovery.choice import SEED, holders, next_era
from protocol.recovery.deciding import MOST_NAMES, Deciding
from protocol.recovery.effects import (
    Adopt,
    FetchLine,
    GivenUp,
    RecoveryContext,
    RecoveryEffect,
    SaveNow,
    Waiting,
)
from protocol.recovery.following import Following
from protocol.recovery.knowledge import BRIEF_PATIENCE_S, Knowledge, since
from protocol.recovery.lines import Line, Lines
from protocol.recovery.stored import MAX_COPIES, STORED, Copy, Lineage, Stored
from protocol.recovery.trouble import Trouble
from protocol.waypoints.chain import Waypoint

SETTLE_S: Final = 2 * ANSWER_S
"""A returning swarm waits this long after the last member that came: its records come
in answer to our digest, which answers its own."""
NOTHING_YET: Final = "nobody has a version of the run yet"
SHUT_DOWN: Final = "the swarm was shut down"


class Recovery:
    """See the module's docstring.

    Args:
        known: what we know at first.
        seq: by it our decisions differ; has to rise over restarts (unix milliseconds do).
    """

    def __init__(self, known: Knowledge, seq: int = 0) -> None:
        self.known, self.evidence = known, known.evidence
        self.lines, self._trouble = Lines(known), Trouble(known)
        self._deciding = Deciding(known, self._trouble)
        self._following = Following(known, self._trouble, self.lines, self._deciding)
        self._me, self._seq = known.me, seq
        self._closed_since: float | None = None
        """Since when we wait to know where the run goes on."""
        self._changed_at = 0.0
        self._live_at = 0.0
        self._refresh_at: float | None = None
        self._asked_to_save = self._ends = False
        self._said = ""
        self.waiting: Waiting | None = None
        """The condition before the run continues from copies; None: there is none."""
        self._due: float | None = None

    @property
    def lineage(self) -> Lineage:
        """The lineage that we follow."""
        return self.known.lineage

    @property
    def open(self) -> bool:
        """Whether it is settled from which version a stage without state begins."""
        return self.known.open

    # --- inputs ------------------------------------------------------------------------------

    def set_copies(self, copies: Iterable[Copy], now: float) -> list[RecoveryEffect]:
        """Take what is on our disk."""
        newest_first = sorted(set(copies), key=lambda copy: -copy.version)[:MAX_COPIES]
        own = Stored(self.lineage, tuple(sorted(newest_first)))
        if self.known.stored.get(self._me) == own:
            return []
        self._changed_at = now
        return [self._publish(own, now), *self._look(now)]

    def _publish(self, own: Stored, now: float) -> Publish:
        self.known.stored[self._me] = own
        self._seq += 1
        self._refresh_at = now + MAX_ADVERT_TTL_S / RENEWALS
        return Publish(STORED, own)

    def receive(self, author: PeerId, stored: Stored, now: float) -> list[RecoveryEffect]:
        """Take another's stored record.

        Args:
            author: its author.
            stored: the record.
            now: monotonic seconds.
        """
        if author == self._me or self.known.stored.get(author) == stored:
            return []
        self.known.stored[author] = stored
        self.evidence.heard(author, stored)
        self._changed_at = now
        return self._look(now)

    def forget(self, author: PeerId) -> None:
        """A record expired."""
        if author != self._me:
            self.known.stored.pop(author, None)

    def fetched(self, now: float) -> list[RecoveryEffect]:
        """The copies of the last ``FetchLine`` are here, each as it was named."""
        self.lines.fetched()
        return self._look(now)

    def not_fetched(self, now: float) -> list[RecoveryEffect]:
        """They cannot be had, or are not what was named."""
        self.known.now = now
        self.lines.not_fetched()
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
        """One of our seats, in our lineage, has closed a step; return whether the evidence should
        be saved (``Evidence.closed``)."""
        self.known.reach(stage, version)
        others = [peer for peer in with_whom if peer != self._me]
        news = self.evidence.closed(stage, version, state, others, now, electors)
        for peer in others:
            if peer in self.known.stored:
                self.evidence.heard(peer, self.known.stored[peer])
        return news

    def certify(self, waypoint: Waypoint, now: float) -> list[RecoveryEffect]:
        """Take the end of a chain of waypoints."""
        self.known.certify(waypoint)
        return self._look(now)

    def begun_with(self, stage: int, *, had: bool, now: float) -> list[RecoveryEffect]:
        """Note whether the state with which a stage begins was had from those who name it. If it
        was not, again and again, the run goes on at a version that others have."""
        there = holders(self.known.stored_live(), self.lineage, stage)
        named_by = [peer for peer in there if peer != self._me]
        (self.evidence.had if had else self.evidence.not_had)(named_by)
        return self._look(now)

    def update(self, context: RecoveryContext, now: float) -> list[RecoveryEffect]:
        """Take a new view of the swarm."""
        if context.live != self.known.context.live:
            self._changed_at = self._live_at = now
        self.known.now = now
        self._trouble.view_changed(rose=self.known.look_at(context))
        return self._look(now)

    def tick(self, now: float) -> list[RecoveryEffect]:
        """Act on deadlines that have passed."""
        own = self.known.stored.get(self._me)
        if own is None or self._refresh_at is None or now < self._refresh_at:
            return self._look(now)
        return [self._publish(own, now), *self._look(now)]

    def next_deadline(self) -> float | None:
        """Return when ``tick`` has something to do."""
        return min((at for at in (self._due, self._refresh_at) if at is not None), default=None)

    def end(self) -> None:
        """Decide and follow nothing from now on: we leave."""
        self._ends = True

    def may_begin(self, stage: int, now: float) -> bool:
        """Whether a stage without state may begin where the lineage does: nobody has come for a
        moment who might be past that, and an elector of its first step is here."""
        settled = self.open and now >= self._live_at + SETTLE_S
        return settled and not self.known.has_passed(stage) and self.known.has_elector()

    # --- looking -----------------------------------------------------------------------------

    def _look(self, now: float) -> list[RecoveryEffect]:
        """Go through the table."""
        known, trouble = self.known, self._trouble
        self._due = self.waiting = None
        known.now = now
        if self._ends or not known.context.live:
            return []
        self._note(now)
        if (other := self._following.lineage()) is not None:
            return self._adopt(*other, now)
        settled = 0.0
        if not known.open:
            if self._me not in known.stored:
                return []  # what we have ourselves could not be read yet
            if (settled := self._settled_at()) > now:
                self._due = settled
                self.waiting = Waiting("for what versions the others have", settled)
                return []
        gone = known.open and known.lost_stages() and known.is_stalled()
        made = known.newest_whole().version if gone else known.steps_made()
        line = self.lines.greater(made)
        self._due = self.lines.next_deadline()
        if line is not None:
            return self._go_over(line, made, now)
        if not known.open:
            trouble.note(there=True)
            return self._decide(NOTHING_YET if known.is_new() else SHUT_DOWN, settled, now)
        if words := trouble.words():
            trouble.note(there=True)
            return self._roll_back(words, now)
        trouble.note(there=False)
        self._asked_to_save = False
        due = self._due, trouble.next_deadline()
        self._due = min((at for at in due if at is not None and at > now), default=None)
        return []

    def _note(self, now: float) -> None:
        """Note since when we wait, do not train, and have met nobody."""
        known = self.known
        self._closed_since = since(self._closed_since, now, holds=True)
        self._trouble.look()
        known.stalled_since = since(known.stalled_since, now, holds=not self._trouble.is_healthy())
        met = any(map(self.evidence.proves, known.linked()))
        known.unmet_since = since(known.unmet_since, now, holds=not met)

    def _settled_at(self) -> float:
        """Return when a returning member stops waiting for others and their records."""
        known, closed_since = self.known, self._closed_since or 0.0
        # of members that we do not know there may be no end
        settled = min(self._changed_at + SETTLE_S, closed_since + FORGET_S)
        if known.context.eras and not known.goes_by_strangers() and not known.voters():
            # they may be what is left of the swarm
            settled = max(settled, (known.unmet_since or 0.0) + BRIEF_PATIENCE_S)
        return settled

    # --- deciding ----------------------------------------------------------------------------

    def _roll_back(self, trouble: str, now: float) -> list[RecoveryEffect]:
        began = self._trouble.since if self._trouble.since is not None else now
        if now < began + ANSWER_S:  # hand-overs take a moment
            self._due = began + ANSWER_S
            return []
        if self._trouble.is_alone() and self._unsaved() and now < began + SAVE_S:
            self._due = began + SAVE_S
            said = self._wait(trouble, Waiting("for our own state to be written", self._due))
            asked, self._asked_to_save = self._asked_to_save, True
            return said if asked else [*said, SaveNow()]
        return self._decide(trouble, began + ANSWER_S, now)

    def _unsaved(self) -> bool:
        """Whether we serve all stages at one version of which the disk lacks a copy."""
        known, versions = self.known, self.known.context.versions
        serving = known.context.serving
        alone = bool(serving) and all(self._me in there for there in serving)
        saved = {copy.stage for copy in known.own_copies() if copy.version in versions[:1]}
        return alone and len(set(versions)) == 1 and len(saved) < known.stages

    def _decide(self, trouble: str, began: float, now: float) -> list[RecoveryEffect]:
        """Begin the next lineage if it is our turn and enough of the run is there."""
        known, deciding = self.known, self._deciding
        self._due = now + ANSWER_S
        lonely = self._trouble.stands_still() and not known.has_begun()
        if not lonely and not known.context.quorum(now):
            return self._wait(trouble, Waiting("for a majority of the swarm"))
        target, lost, until = deciding.plan(began)
        if not target.version and not deciding.may_begin_again():
            words = "for a member that has the run's state: it was trained before we came"
            return self._wait(trouble, Waiting(words))
        if until > now:
            self._due = min(now + SETTLE_S, until)
            newer = f"version {target.version + lost}" if lost > 0 else "a newer one"
            here = f"version {target.version} is the newest that every stage has here"
            whom = f"for {deciding.awaited()} who may have {newer}"
            most = f"{until - began:.0f} s"
            return self._wait(trouble, Waiting(f"{whom}; {here}", until), most)
        before = deciding.before(self._me)
        if now < (turn := until + HEARD_S * len(before)):
            self._due = min(turn, now + ANSWER_S)
            self.waiting = Waiting(f"for {short(before[0])} to say where the run goes on", turn)
            return []
        if (line := self.lines.greater(target.version, deciding=True)) is not None:
            return self._go_over(line, target.version, now)
        lineage = next_era(self.lineage, target, self._me, self._seq, deciding.first_electors())
        lost = max(lost, self.evidence.version - target.version)
        reason = trouble if known.is_new() else f"{trouble}; {_again(lost)}"
        return self._adopt(lineage, reason, now, ours=True)

    def _go_over(self, line: Line, made: int, now: float) -> list[RecoveryEffect]:
        """Have the state of a line that stands before ours fetched, then give up ours."""
        healthy = self._trouble.is_healthy()
        step = self.lines.go_over(line, made, healthy=healthy)
        if isinstance(step, GivenUp):
            return self._adopt(line.lineage, "", now, given_up=step)
        names = ", ".join(map(short, sorted(line.members)[:MOST_NAMES]))
        waiting = Waiting(f"for the state of {names}, which has gone further than we apart from us")
        said = self._wait("two lines of this run have met", waiting)
        if healthy:
            self.waiting = None  # ours goes on until then
        if isinstance(step, FetchLine):
            return [*said, step]
        self._due = self._due if step is None else step
        return said

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
        known = self.known
        if given_up is None:
            self.evidence.begin(self.lineage, lineage)
        else:
            self.evidence.go_over(given_up.reached)
        known.refused[self.lineage] = now + ASIDE_S
        begins = "starts" if self.lineage == SEED else "starts again"
        if lineage.version:
            begins = "goes on"
        was_open = known.open
        known.begin(lineage)
        self._trouble.begin()
        self._asked_to_save, self._said = False, ""
        effects: list[RecoveryEffect] = []
        if given_up is None:
            words = f"training {begins} from step {lineage.version}: {reason}"
            effects.append(Explain("swarm", words, "warning" if was_open else "info"))
        if (own := known.stored.get(self._me)) is not None:
            kept = tuple(copy for copy in own.copies if copy.version <= lineage.version)
            if given_up is not None and given_up.fetched:
                kept = tuple(sorted(given_up.fetched))
            effects.append(self._publish(Stored(lineage, kept), now))
        return [*effects, Adopt(lineage, reason, ours, given_up)]

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
