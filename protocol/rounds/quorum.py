"""The right to close a step: one side of a split swarm at most has it (invariant I5).

Dynamic-linear voting (Jajodia and Mutchler, ACM TODS 15(2), 1990) with leases in place of votes.
Every plan names its *electors*, the replicas of the stage and of its neighbours as its leader saw
them, and its members become the stage's *roll*. Replicas may close the next step if

- they are in touch with a majority of the electors, which do not list them as lost, and
- a majority of the electors lists each missing one of the roll as lost, or it has said itself that
  it serves the stage no more.

An elector lists a peer as lost after 5 s of silence, or when its connection ends; a replica counts
an elector for 4 s. An elector that has never met the missing replica (it came when the other went)
learns of it from the heartbeats of replicas that miss it (``missing``), and its 5 s begin then. So
no elector counts for both sides. Electors whose process ended while we were in contact (or that
said goodbye) count for neither side: half of a swarm may be killed at once. Of an even number, the
half with the first elector by rank goes on.

A replica that was cut off from its majority, or suspended, looks around before it closes a step:
newcomers that are on no roll it knows may have closed that step. So does a replica without a plan
that has only just started: it has not met all the replicas that begin where it does.

The electors of a plan are its members and peers of the stages beside, at most seven (``electors``).
Of the stages beside a plan names whom the last plan named, or whom all its members vouch for in
their reports. So no leader can name peers that are invented or that only it knows, and every member
follows the plan of an honest leader at once. Nor does a member follow a plan that leaves out half
or more of the electors that it hears and would name itself: a leader that has lost its neighbours,
because they have banned it, would else decide with those alone that it has left.

An elector that follows a later lineage does not count: it has given up ours, with what it closed
there, and a replica that was away might close those steps again with its help.

A roll-back closes nothing. For it a majority of the electors has to be within reach: all electors
that we hear count, also those that are set aside.

Holds the electors and the roll of the last plan. Before the first plan the electors are those that
the lineage names, and nobody is missing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Protocol

from protocol import limits
from protocol.answer import YES, Answer, no
from protocol.ids import PeerId, rank, short
from protocol.view import Needs, SwarmView

IsProven = Callable[[PeerId], bool]

LOOK_AROUND_S: Final = 6.0
"""Long enough to be linked with new replicas, and to hear their versions."""


class Touch(Protocol):
    """The interface of our contacts to a quorum; ``now`` is monotonic seconds."""

    def present(self, peer: PeerId, now: float) -> bool:
        """Whether a peer still counts us as alive."""

    def meets(self, peer: PeerId, now: float) -> bool:
        """Whether we hear a peer, also if one of us has set the other aside."""

    def hears(self, peer: PeerId, now: float) -> bool:
        """Whether a peer has heard us since we were last asleep."""

    def expect(self, peers: Iterable[PeerId], now: float) -> None:
        """Count a peer as lost, too, if it is never heard."""

    def is_gone(self, peer: PeerId) -> bool:
        """Whether a peer's process has certainly ended."""

    def serves(self, peer: PeerId, stage: int, now: float) -> bool | None:
        """Whether a present peer serves a stage, by its own word."""

    def has_lost(self, elector: PeerId, peer: PeerId, now: float) -> bool:
        """Whether a present elector has lost a peer."""

    def lost(self, now: float) -> tuple[PeerId, ...]:
        """The peers that we have lost ourselves."""

    def seated(self, stage: int, needs: Needs) -> None:
        """A seat begins in ``stage``; it knows whom it needs."""

    def shun(self, stage: int, peers: Iterable[PeerId]) -> None:
        """From now on ignore the peers that the seat in ``stage`` sets aside."""

    def set_aside_elsewhere(self, stage: int) -> Collection[PeerId]:
        """The peers that our seats in other stages set aside."""

    def needed_elsewhere(self, stage: int, peer: PeerId, now: float) -> bool:
        """Whether one of our seats in other stages needs a peer to close a step."""

    def awake_since(self, now: float) -> float:
        """Since when we have been here without a break."""


@dataclass(slots=True)
class _Majority:
    """Whether we have had it, and when we last were without it since."""

    had: bool = False
    lost_at: float = -math.inf

    def note(self, there: bool, now: float) -> bool:
        if self.had and not there:
            self.lost_at = now
        self.had |= there
        return there


class Quorum:
    """See the module's docstring.

    Args:
        me: our id.
        stage: ours.
        touch: None if all peers in the view are in touch, as in worlds without partitions.
        has_left: whether a peer follows a later lineage than ours, by its own record.
        electors: of the lineage's first step.
    """

    def __init__(
        self,
        me: PeerId,
        stage: int,
        touch: Touch | None,
        has_left: Callable[[PeerId], bool] = lambda _peer: False,
        electors: Collection[str] = (),
    ) -> None:
        self._me, self._stage, self._touch, self._has_left = me, stage, touch, has_left
        self.electors: frozenset[PeerId] = frozenset(map(PeerId, electors)) or frozenset({me})
        self.roll = frozenset[PeerId]()
        self.missing: tuple[PeerId, ...] = ()
        """Peers without which the step is closed only if a majority of the electors lists them as
        lost."""
        self._settled_at: float | None = None
        self._vouched: dict[PeerId, None] = {}
        """Whom we have vouched for in this step, the latest first."""
        self._for_us, self._within_reach = _Majority(), _Majority()

    def settle(self, members: Iterable[str], electors: Iterable[str], now: float) -> None:
        """Take members and electors of the plan that made our version.

        Args:
            members: of the plan; they are the roll.
            electors: of the plan.
            now: monotonic seconds.
        """
        self.roll = frozenset(map(PeerId, members))
        self.electors = frozenset(map(PeerId, electors)) or frozenset({self._me})
        self._settled_at, self.missing, self._vouched = now, (), {}
        self._expect_all(now)

    def _expect_all(self, now: float) -> None:
        if self._touch is not None:
            self._touch.expect(sorted((self.roll | self.electors) - {self._me}), now)

    @property
    def settled(self) -> bool:
        """Whether a plan has named electors and roll."""
        return self._settled_at is not None

    def names(self, peer: PeerId) -> bool:
        """Whether that plan named a peer."""
        return self.settled and (peer in self.roll or peer in self.electors)

    def vouch(self, view: SwarmView, is_proven: IsProven) -> list[PeerId]:
        """Return whom we know in the stages beside ours. The step's plans may name them.

        If nobody is proven there, as in a young swarm, everybody counts who serves.
        """
        there = self._beside(view)
        known = electors(self._stage, (), [p for p in there if is_proven(p)] or there)
        self._vouched = dict.fromkeys([*known, *self._vouched][: limits.MAX_REPLICAS_IN_ROUND])
        return known

    def choose(
        self, members: Collection[PeerId], known: Collection[PeerId], view: SwarmView
    ) -> list[PeerId]:
        """Return the electors of a plan: its members and, of the peers that serve beside our stage,
        the ``known`` ones and those that the last plan named."""
        return electors(self._stage, members, self._beside(view) & {*known, *self._last})

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
        if self._touch is None:
            return YES
        if set(electors(self._stage, members, ())).difference(named):
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
        beside = (view.serving(stage) for stage in (self._stage - 1, self._stage + 1))
        return {replica.peer for replicas in beside for replica in replicas} - {self._me}

    def observe(self, now: float) -> None:
        """Note whether we lose a majority."""
        self._expect_all(now)
        self.holds(now)
        self.may_roll_back(now)

    def holds(self, now: float) -> Answer:
        """Whether we are in touch with a majority of the electors."""
        if self._touch is None:
            return YES
        for_us = self._in_touch(now)
        return self._has(self._for_us, for_us, "in touch with us", now)

    def _in_touch(self, now: float) -> list[PeerId]:
        return [e for e in self.electors if self._counts(e, now) and not self._lost_us(e, now)]

    def needs(self, peer: PeerId, aside: Collection[PeerId], now: float) -> bool:
        """Whether we have a majority of the electors only with this peer.

        Of those in touch with us, the ones that are ``aside`` do not count. The peer itself counts
        if we hear it: an ignored peer is in touch again soon after we stop ignoring it.
        """
        touch = self._touch
        if touch is None or peer not in self.electors:
            return False
        without = {e for e in self._in_touch(now) if e not in aside} - {peer}
        heard = touch.meets(peer, now)
        return heard and self._is_majority({*without, peer}) and not self._is_majority(without)

    def may_roll_back(self, now: float) -> Answer:
        """Whether a majority of the electors is within reach. Those count, too, that are set aside:
        a step that nobody can close any more divides a stage, and a roll-back mends it. If the
        processes of all electors have ended, nobody is waited for."""
        touch = self._touch
        if touch is None or not self._left():
            return YES
        there = [e for e in self.electors if e == self._me or touch.meets(e, now)]
        return self._has(self._within_reach, there, "within reach", now)

    def _has(self, majority: _Majority, some: list[PeerId], how: str, now: float) -> Answer:
        if not majority.note(self._is_majority(some), now):
            return no(f"{len(some)} of {len(self.electors)} electors are {how}, too few")
        woke = -math.inf if self._touch is None else self._touch.awake_since(now)
        knows_all = self._settled_at is not None and woke <= self._settled_at
        since = majority.lost_at if knows_all else max(majority.lost_at, woke)
        if now < since + LOOK_AROUND_S:
            return no(f"we were cut off or asleep and look around for {LOOK_AROUND_S:.0f} s")
        return YES

    def unbroken_since(self, now: float) -> float:
        """Return since when we have been awake and in touch with a majority of the electors."""
        woke = -math.inf if self._touch is None else self._touch.awake_since(now)
        return max(self._for_us.lost_at, woke)

    def suffice(self, peers: Collection[PeerId]) -> bool:
        """Whether these peers alone are a majority of the electors."""
        gone = () if self._touch is None else filter(self._touch.is_gone, peers)
        return self._is_majority(self.electors.intersection(peers).difference(gone))

    def hears(self, peer: PeerId, now: float) -> bool:
        """Whether what a peer says did not wait while we slept."""
        return peer == self._me or self._touch is None or self._touch.hears(peer, now)

    def may_go_on_without(self, missing: Collection[PeerId], now: float) -> Answer:
        """Whether the step may be closed without the ``missing`` replicas of the roll."""
        if self._touch is None:
            return YES
        asked = [p for p in sorted(missing) if p != self._me and not self._is_out_itself(p, now)]
        self.missing = tuple(asked[: limits.MAX_MISSING])
        kept = next((peer for peer in asked if not self._is_voted_out(peer, now)), None)
        if kept is None:
            return YES
        return no(f"{short(kept)} is missing, and most electors do not say that they have lost it")

    def absent(self, there: Collection[PeerId], now: float) -> list[PeerId]:
        """Return those of the roll that are not there and have not said that they serve no more."""
        if self._touch is None:
            return []
        missing = self.roll.difference(there)
        return [p for p in sorted(missing) if p != self._me and not self._is_out_itself(p, now)]

    def _is_out_itself(self, peer: PeerId, now: float) -> bool:
        touch = self._touch
        return touch is None or touch.is_gone(peer) or touch.serves(peer, self._stage, now) is False

    def _is_voted_out(self, peer: PeerId, now: float) -> bool:
        lost = [e for e in self.electors if self._counts(e, now) and self._says_lost(e, peer, now)]
        return self._is_majority(lost)

    def _counts(self, elector: PeerId, now: float) -> bool:
        if elector == self._me or self._touch is None:
            return True
        return self._touch.present(elector, now) and not self._has_left(elector)

    def _lost_us(self, elector: PeerId, now: float) -> bool:
        return elector != self._me and self._says_lost(elector, self._me, now)

    def _says_lost(self, elector: PeerId, peer: PeerId, now: float) -> bool:
        if self._touch is None:
            return False
        if elector == self._me:
            return peer in self._touch.lost(now)
        return self._touch.has_lost(elector, peer, now)

    def _is_majority(self, some: Collection[PeerId]) -> bool:
        """More than half of the electors whose process has not ended, or half with the first."""
        weight = 2 * len(some) + (_first(self.electors) in some)
        return weight > len(self._left())

    def _left(self) -> list[PeerId]:
        touch = self._touch
        return [e for e in self.electors if touch is None or not touch.is_gone(e)]


@lru_cache(maxsize=64)
def _first(electors: frozenset[PeerId]) -> PeerId:
    return min(electors, key=lambda peer: rank("elector", peer))


def electors(stage: int, members: Iterable[PeerId], beside: Iterable[PeerId]) -> list[PeerId]:
    """Return the electors that a plan of ``stage`` names: its ``members``, then peers ``beside``,
    each by rank, as many as there may be."""
    ours = frozenset(members)
    order = sorted(
        ours.union(beside), key=lambda peer: (peer not in ours, rank("elector", stage, peer))
    )
    return sorted(order[: limits.MAX_ELECTORS])
