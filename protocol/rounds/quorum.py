"""The electors of a step, as one of its replicas sees them.

The decree before names the electors of the step and, as its members, the stage's *roll*; the first
electors of a lineage are named by the lineage. A decree takes the votes of a majority of them
(``protocol/decree``). That a leader is in touch with a majority, and has lost whom it leaves out of
the roll, spares attempts that would come to nothing. Whom a plan may name as the next electors, and
when its members follow that, is in SPEC.md, section 12.

A roll-back closes nothing. For it a majority of the electors that have not ended has to be within
reach: all that we hear count, also those that are set aside.
"""

from collections.abc import Callable, Collection, Iterable

from protocol import limits
from protocol.answer import YES, Answer, no
from protocol.decree.decree import designated, electors, is_majority
from protocol.ids import PeerId, short
from protocol.membership.contacts import Contacts
from protocol.view import SwarmView


class Quorum:
    """See the module's docstring.

    Args:
        me: our id.
        stage: ours.
        touch: our contacts.
        has_left: whether a peer follows a later lineage than ours, by its own record.
        electors: of the lineage's first step; ourselves alone, if nobody is named.
    """

    def __init__(
        self,
        me: PeerId,
        stage: int,
        touch: Contacts,
        has_left: Callable[[PeerId], bool] = lambda _peer: False,
        electors: Collection[PeerId] = (),
    ) -> None:
        self.me, self.stage, self._touch, self._has_left = me, stage, touch, has_left
        self.electors: frozenset[PeerId] = frozenset(electors or (me,))
        self.roll: frozenset[PeerId] = frozenset()
        self.designated = PeerId("")
        """Who leads the first attempt of the step; nobody, before the first decree."""
        self.missing: tuple[PeerId, ...] = ()
        """Those of the roll that are not there and have not said that they serve no more."""
        self._here: frozenset[PeerId] | None = None
        """The peers in the view."""
        self._vouched: dict[PeerId, None] = {}
        """Whom we have vouched for in this step, the latest first."""
        self.settled = False
        """Whether a decree has named electors and roll."""
        self.aside: frozenset[PeerId] = frozenset()
        """Whom our seat has set aside: they are lost to us, and to our elector, at once. It is the
        votes of the electors that keep two sides from closing one step."""

    def settle(
        self, members: Iterable[PeerId], electors: Collection[PeerId], step: int, now: float
    ) -> None:
        """Take members and electors of the decree that made our version; ``step`` is the next
        one."""
        self.roll, self.electors = frozenset(members), frozenset(electors or (self.me,))
        self.settled, self.missing, self._vouched = True, (), {}
        self.designated = designated(self.roll, self.stage, step)
        self._expect_all(now)

    def _expect_all(self, now: float) -> None:
        self._touch.expect(sorted((self.roll | self.electors) - {self.me}), now)

    def names(self, peer: PeerId) -> bool:
        """Whether that plan named a peer."""
        return self.settled and (peer in self.roll or peer in self.electors)

    def vouch(self, view: SwarmView, is_proven: Callable[[PeerId], bool]) -> list[PeerId]:
        """Return whom we know in the stages beside ours, so that the step's plans may name them: if
        nobody is proven there, as in a young swarm, everybody who serves."""
        there = self._beside(view)
        known = electors(self.stage, (), [p for p in there if is_proven(p)] or there)
        self._vouched = dict.fromkeys([*known, *self._vouched][: limits.MAX_REPLICAS_IN_ROUND])
        return known

    def choose(
        self, members: Collection[PeerId], known: Collection[PeerId], view: SwarmView
    ) -> list[PeerId]:
        """Return the electors of a plan: its members, but for those that are leaving while others
        stay, and, of other peers that serve beside our stage, the ``known`` ones and those that the
        last plan named."""
        beside = (self._beside(view) & {*known, *self._last}).difference(members)
        return electors(self.stage, self._staying(members, view), beside)

    def _staying(self, members: Collection[PeerId], view: SwarmView) -> Collection[PeerId]:
        leaving = {replica.peer for replica in view.serving(self.stage) if replica.leaving}
        return [peer for peer in members if peer not in leaving] or members

    def keeps(
        self, members: Collection[PeerId], named: Collection[PeerId], view: SwarmView, now: float
    ) -> Answer:
        """Whether the electors that a plan names may take over from ours.

        Args:
            members: of the plan.
            named: by the plan as electors.
            view: ours; who serves elsewhere now is no elector here.
            now: monotonic seconds.
        """
        if set(electors(self.stage, self._staying(members, view))).difference(named):
            return no("a plan does not name its own members as electors")
        strangers = set(named).difference(members, self._last, self._vouched)
        if strangers or len(named) > limits.MAX_ELECTORS:
            return no(
                f"a plan names {len(named)} electors, of which we do not know {len(strangers)}"
            )
        ours = self._last.intersection(self.choose(members, self._vouched, view))
        heard = [e for e in ours if self._counts(e, now)]
        kept = [e for e in heard if e in named]
        if not heard or 2 * len(kept) > len(heard):
            return YES
        return no(f"a plan keeps {len(kept)} of the {len(heard)} electors that we hear, too few")

    @property
    def _last(self) -> frozenset[PeerId]:
        """The electors that the last plan named."""
        return self.electors if self.settled else frozenset()

    def _beside(self, view: SwarmView) -> set[PeerId]:
        beside = (view.serving(stage) for stage in (self.stage - 1, self.stage + 1))
        return {replica.peer for replicas in beside for replica in replicas} - {self.me}

    def observe(self, view: SwarmView, now: float) -> None:
        """Take a new view."""
        if self._here is None:
            self._expect_all(now)
        self._here = frozenset(r.peer for stage in view.stages for r in stage)

    def coming(
        self, held: Collection[PeerId], members: Collection[PeerId], now: float
    ) -> set[PeerId]:
        """Return the electors of a lineage's first step that hold our stage, or are in touch with
        us and hold none yet, and are no members: all begin at once, and whoever is first is not to
        leave the others behind."""
        if self.settled:
            return set()
        free = self.electors.difference(self._here or ())
        found = self.electors.intersection(held).union(e for e in free if self._counts(e, now))
        return set(found.difference(members))

    def suffice(self, peers: Collection[PeerId]) -> bool:
        """Whether the votes of these peers are those of a majority of the electors."""
        return is_majority(peers, self.electors)

    def ended(self) -> int:
        """Return the number of our electors if so many have ended, or follow a later lineage, that
        the others are no majority; else 0."""
        left = [e for e in self.electors if not (self.is_gone(e) or self._has_left(e))]
        return 0 if self.suffice(left) else len(self.electors)

    def can_suffice_without(self, refusing: Collection[PeerId]) -> bool:
        """Whether the other electors can still be a majority."""
        return self.suffice([e for e in self.electors - set(refusing) if not self.is_gone(e)])

    def is_gone(self, peer: PeerId) -> bool:
        """Whether a peer's process has certainly ended."""
        return peer != self.me and self._touch.is_gone(peer)

    def holds(self, now: float) -> Answer:
        """Whether we are in touch with a majority of the electors."""
        some = self._in_touch(now)
        if self.suffice(some):
            return YES
        return no(f"{len(some)} of {len(self.electors)} electors are in touch with us, too few")

    def _in_touch(self, now: float) -> list[PeerId]:
        return [elector for elector in self.electors if self._counts(elector, now)]

    def needs(self, peer: PeerId, aside: Collection[PeerId], now: float) -> bool:
        """Whether we have a majority of the electors only with this peer, which counts if we hear
        it: who is ignored is in touch again soon after. Others that are ``aside`` do not count."""
        if peer not in self.electors or not self._touch.meets(peer, now):
            return False
        without = {e for e in self._in_touch(now) if e not in aside} - {peer}
        return self.suffice({*without, peer}) and not self.suffice(without)

    def may_roll_back(self, now: float) -> Answer:
        """Whether a majority of the electors is within reach. Those count, too, that are set aside:
        a step that nobody can close any more divides a stage, and a roll-back mends it. If the
        processes of all electors have ended, nobody is waited for."""
        if all(map(self.is_gone, self.electors)):
            return YES
        there = [e for e in self.electors if e == self.me or self._touch.meets(e, now)]
        if is_majority(there, self.electors, self.is_gone):
            return YES
        return no(f"{len(there)} of {len(self.electors)} electors are within reach, too few")

    def may_go_on_without(self, missing: Collection[PeerId], now: float) -> Answer:
        """Whether the step may be closed without the ``missing`` replicas of the roll."""
        absent = self.absent(missing, now)
        self.missing = tuple(absent[: limits.MAX_MISSING])
        kept = set(absent).difference(self._touch.lost(now), self.aside)
        return no(f"{short(min(kept))} is missing, and not lost yet") if kept else YES

    def absent(self, missing: Collection[PeerId], now: float) -> list[PeerId]:
        """Return those of the missing that have not said that they serve no more."""
        there = [peer for peer in sorted(set(missing) - {self.me}) if not self.is_gone(peer)]
        return [peer for peer in there if self._touch.serves(peer, self.stage, now) is not False]

    def _counts(self, elector: PeerId, now: float) -> bool:
        if elector == self.me:
            return True
        there = self._touch.present(elector, now) and elector not in self.aside
        return there and not self._has_left(elector)
