"""A newcomer whose line carries a round's sums more slowly than the stage closes steps, in virtual
time: sums overtake the state on its line, and what waits for it too long is dropped with its link.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from client.lab.simulate.agenda import Action
from client.lab.simulate.multisets import GRADIENT_SIZE
from client.lab.simulate.peer import SimPeer
from client.lab.simulate.seats import Parts
from client.lab.simulate.training import TrainingWorld, WorldConfig
from client.train.messaging.outbox import ROUNDS
from protocol.answer import YES
from protocol.ids import PeerId
from protocol.rounds.keeping_up import KeepingUp
from protocol.rounds.shards import segments
from protocol.wire.messages import Message, Reduced

SUMS_S, STATE_S = 4.0, 48.0
"""Seconds in which the line carries the sums of a round, and the state: 12 bytes a parameter to
one."""
BEGUN_S, LOOK_S, LIMIT_S = 20.0, 0.25, 2000.0


class NarrowLine(TrainingWorld):
    """Newcomers have a line on which sums go before the state.

    Args:
        sums_s: seconds that a round's sums take on the line.
        state_s: seconds that a state takes on the line if nothing else is sent.
    """

    def __init__(self, config: WorldConfig, sums_s: float, state_s: float) -> None:
        self._sums_s, self._state_s = sums_s, state_s
        self._free_at: dict[PeerId, float] = {}
        """By newcomer: when its line has carried the sums that were sent so far."""
        self._cuts: dict[PeerId, int] = {}
        self.begun: list[SimPeer] = []
        """By fetch of a state: who fetches."""
        super().__init__(config)

    def send(self, peer: SimPeer, to: PeerId, message: Message, parts: Parts = ()) -> None:
        other = self.peers.get(to)
        if not isinstance(message, Reduced) or other is None or other.serving:
            super().send(peer, to, message, parts)
            return
        now, cuts = self.agenda.now, self._cuts.get(to, 0)
        free_at = max(now, self._free_at.get(to, 0.0))
        if free_at - now > ROUNDS * self._sums_s:
            self._cuts[to], self._free_at[to] = cuts + 1, now
            return
        members = sum(p.serving for p in self.peers.values())
        each_s = self._sums_s / (members * segments(GRADIENT_SIZE, members))
        self._free_at[to] = free_at + each_s
        arrive = super().send

        def carried() -> None:
            if peer.alive and self._cuts.get(to, 0) == cuts:
                arrive(peer, to, message, parts)

        self.agenda.at(self._free_at[to], carried)

    def fetch(self, peer: SimPeer, fetched: Action) -> None:
        self.begun.append(peer)
        self._carry(peer, peer.epoch, 0.0, fetched)

    def _carry(self, peer: SimPeer, epoch: int, carried_s: float, fetched: Action) -> None:
        """Send some of a state, while no sums are on the line."""
        if not peer.alive or peer.epoch != epoch:
            return
        if carried_s >= self._state_s:
            fetched()
            return
        if self._free_at.get(peer.peer, 0.0) <= self.agenda.now:
            carried_s += LOOK_S
        self.after(LOOK_S, partial(self._carry, peer, epoch, carried_s, fetched))

    def comes(self, name: str) -> SimPeer:
        """Let a newcomer hear of the others, and then ask for admission."""
        peer = self.add_peer(0, name)
        self._announce_all()
        self.after(1.0, partial(self._ask_to_join, peer))
        return peer

    def trains(self, peer: SimPeer) -> bool:
        """Whether others count work of a peer in the round that they are in."""
        plans = [
            p.seat.member.plan_followed
            for p in self.peers.values()
            if p is not peer and p.serving and p.seat
        ]
        named = [m for plan in plans if plan for m in plan.members if m.peer == peer.peer]
        return peer.serving and any(any(member.counted) for member in named)

    def until(self, happened: Callable[[], bool], limit_s: float = LIMIT_S) -> bool:
        """Run until something has happened; return whether it has within the limit."""
        until = self.agenda.now + limit_s
        while not happened() and self.agenda.advance(until):
            pass
        return happened()

    def pace_s(self, for_s: float) -> float:
        """Run for a while; return the seconds of a step."""
        before, begun = self.version(), self.agenda.now
        self.until(lambda: False, for_s)
        return (self.agenda.now - begun) / max(1, self.version() - before)

    def between_rounds(self) -> bool:
        """Whether no plan is followed."""
        seats = (p.seat for p in self.peers.values() if p.serving and p.seat)
        return not any(seat.member.plan_followed for seat in seats)

    def version(self) -> int:
        """The newest version of a live replica."""
        return max(p.seat.step for p in self.peers.values() if p.serving and p.seat)


def begun(replicas: int, sums_s: float = SUMS_S, seed: int = 0, per_step: int = 4) -> NarrowLine:
    """A stage that has trained for a while."""
    config = WorldConfig(stages=1, replicas=replicas, per_step=per_step, steps=100_000, seed=seed)
    world = NarrowLine(config, sums_s, STATE_S)
    world.start_clock()
    world.until(lambda: world.agenda.now > BEGUN_S)
    return world


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_a_newcomer_comes_in_however_much_faster_the_stage_is_than_its_line(
    replicas: int, seed: int
) -> None:
    world = begun(replicas, seed=seed)
    before = world.version()
    assert BEGUN_S / before < SUMS_S / 8, "the stage is not that fast"
    late, came_at = world.comes("late"), world.agenda.now
    assert world.until(lambda: world.trains(late)), "\n".join(world.log[-20:])
    took_s, rounds = world.agenda.now - came_at, world.version() - before
    assert len(world.begun) == 1, "it has begun anew"
    assert took_s < 2.5 * STATE_S, "half of the line is for the state"
    assert rounds < 3 * STATE_S / SUMS_S, "it has to keep the sums of no more rounds"


def meanwhile_s(world: NarrowLine) -> float:
    """The seconds of a step while a newcomer fetches the state."""
    late = world.comes("late")
    world.until(lambda: bool(world.begun))
    pace_s = world.pace_s(STATE_S / 2)
    assert not late.serving
    return pace_s


def test_a_stage_waits_for_no_line_that_carries_its_sums_in_half_a_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    paced_s = meanwhile_s(begun(1, sums_s=0.25, per_step=24))
    monkeypatch.setattr(KeepingUp, "may_plan", lambda *_: YES)
    freely_s = meanwhile_s(begun(1, sums_s=0.25, per_step=24))
    assert freely_s > 2 * 0.25
    assert paced_s < 1.02 * freely_s


def test_two_newcomers_share_the_patience_of_a_stage() -> None:
    world = begun(2)
    late = [world.comes(name) for name in ("late", "later")]
    assert world.until(lambda: all(map(world.trains, late))), "\n".join(world.log[-20:])
    assert len(world.begun) == 2


def test_a_dead_donor_costs_a_newcomer_its_state_and_not_its_place() -> None:
    world = begun(3)
    late = world.comes("late")
    world.until(lambda: bool(world.begun))
    world.until(lambda: False, STATE_S / 2)
    assert world.until(world.between_rounds)
    assert late.donor is not None
    world.kill(world.peers[late.donor])
    assert world.until(lambda: world.trains(late)), "\n".join(world.log[-20:])
    assert len(world.begun) == 2


def test_a_dead_newcomer_holds_nobody_up() -> None:
    world = begun(2)
    alone_s = BEGUN_S / world.version()
    late = world.comes("late")
    world.until(lambda: bool(world.begun))
    assert world.pace_s(STATE_S / 2) > 2 * alone_s
    world.kill(late)
    world.until(lambda: False, 5.0)
    assert world.pace_s(30.0) < 1.5 * alone_s


def test_a_newcomer_that_takes_nothing_holds_a_stage_up_once_and_for_seconds() -> None:
    world = begun(2, sums_s=1e9)
    alone_s, size = BEGUN_S / world.version(), GRADIENT_SIZE
    most_s = KeepingUp(size, lambda _peer: True).step_s
    before, begun_at = world.version(), world.agenda.now
    world.comes("liar")
    world.until(lambda: bool(world.begun))
    assert world.until(lambda: world.version() > before + 20)
    assert world.agenda.now - begun_at < 2 * most_s + 30 * alone_s
    assert world.pace_s(most_s) < 1.5 * alone_s
