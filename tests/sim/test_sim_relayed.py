"""Where some pairs reach each other through one relay only, work goes where it needs no relay.

A relay of 5 MB/s, and boundaries of 4 MB on lines of 20 MB/s. Without the rule a replica is chosen
by its load alone: steps then take half as long again where two of three are behind routers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from statistics import mean

import pytest

from client.lab.simulate.peer import SimPeer
from client.lab.simulate.seats import Parts
from client.lab.simulate.training import WorldConfig
from protocol.ids import PeerId
from protocol.pipeline import next_hop
from protocol.view import SwarmView
from protocol.wire.messages import Backward, Forward, Message
from tests.support.straggler_world import StragglerWorld

SEEDS = range(2)
RELAY_BYTES_PER_S = 5e6
RATE = 1 / 0.6
STEPS = 2


BOUNDARY_BYTES = 4_000_000
LINE_BYTES_PER_S = 20_000_000


class RelayedWorld(StragglerWorld):
    """Counts the bytes that the relay passes on.

    Args:
        closed: how many peers of each stage are behind routers that let nobody in; two such reach
            each other through the relay only.
        relay_bytes_per_s: its rate for all of them.
        rate: microbatches per second that each says it computes; 0: not known.
    """

    def __init__(
        self,
        config: WorldConfig,
        closed: Callable[[int], int],
        relay_bytes_per_s: float,
        rate: float = 0.0,
    ) -> None:
        self._closed_of = closed
        self._relay_bytes_per_s = relay_bytes_per_s
        self._free_at: Counter[object] = Counter()
        self.relayed_bytes = self.direct_bytes = 0
        super().__init__(config, rates=lambda _world, _peer: rate)

    @property
    def relayed_share(self) -> float:
        """The part of the boundaries' bytes that went through the relay."""
        return self.relayed_bytes / (self.relayed_bytes + self.direct_bytes)

    def is_closed(self, peer: SimPeer) -> bool:
        """Whether a peer can be dialled by nobody."""
        return peer in self.of_stage(peer.stage)[: self._closed_of(peer.stage)]

    def is_relayed(self, one: SimPeer, other: SimPeer) -> bool:
        """Whether two peers reach each other through the relay only."""
        return self.is_closed(one) and self.is_closed(other)

    def send(self, peer: SimPeer, to: PeerId, message: Message, parts: Parts = ()) -> None:
        """Send a message; a boundary takes its time."""
        other = self.peers.get(to)
        if other is None or not isinstance(message, Forward | Backward):
            super().send(peer, to, message, parts)
            return
        self.messages[type(message).__name__] += 1
        arrive = partial(self._arrive, peer.peer, other, message, parts)
        ways: list[tuple[object, float]] = [(("up", peer.peer), LINE_BYTES_PER_S)]
        if self.is_relayed(peer, other):
            ways.append(("relay", self._relay_bytes_per_s))
            self.relayed_bytes += BOUNDARY_BYTES
        else:
            self.direct_bytes += BOUNDARY_BYTES
        ways.append((("down", to), LINE_BYTES_PER_S))
        self._pass(ways, partial(self._transmit, peer, other, message.route.lane, arrive))

    def _pass(self, ways: list[tuple[object, float]], then: Callable[[], object]) -> None:
        if not ways:
            then()
            return
        (way, rate), *others = ways
        done = max(self.agenda.now, self._free_at[way]) + BOUNDARY_BYTES / rate
        self._free_at[way] = done
        self.agenda.at(done, partial(self._pass, others, then))

    def believes(self, peer: SimPeer) -> SwarmView:
        """Return a peer's view, which knows its own links."""
        view = peer.believes(self.config.stages)
        others = self.peers.values()
        return replace(view, relayed=frozenset(p.peer for p in others if self.is_relayed(peer, p)))

    def _update_view(self, peer: SimPeer) -> None:
        if peer.seat is not None and peer.alive:
            self.perform(peer, peer.seat.update_view(self.believes(peer), self.agenda.now))


@dataclass(frozen=True)
class Played:
    """Means of several runs."""

    step_s: float
    relayed_share: float


def played(replicas: int, closed: int) -> Played:
    """Train swarms of three stages, in each of which so many replicas are behind routers that let
    nobody in."""
    worlds = []
    for seed in SEEDS:
        config = WorldConfig(
            stages=3,
            replicas=replicas,
            per_step=12 * replicas,
            steps=STEPS,
            seed=seed,
            delay_s=(0.01, 0.05),
            compute_s=(0.2, 0.4),
        )
        world = RelayedWorld(config, lambda _stage: closed, RELAY_BYTES_PER_S, RATE)
        world.start_clock()
        world.run(3600.0)
        worlds.append(world)
    step_s = mean(world.done_at for world in worlds) / STEPS
    return Played(step_s, mean(world.relayed_share for world in worlds))


def without_the_rule(replicas: int, closed: int) -> Played:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(next_hop, "RELAYED_MORE", 0.0)
        return played(replicas, closed)


@pytest.mark.parametrize(("replicas", "closed", "most"), [(2, 1, 0.95), (3, 2, 0.8)])
def test_fewer_bytes_are_relayed_and_steps_are_shorter(
    replicas: int, closed: int, most: float
) -> None:
    now, before = played(replicas, closed), without_the_rule(replicas, closed)
    assert now.relayed_share < 0.6 * before.relayed_share
    assert now.step_s < most * before.step_s


def test_where_all_are_direct_nothing_changes() -> None:
    now = played(2, 0)
    assert now == without_the_rule(2, 0)
    assert now.relayed_share == 0


def test_who_can_only_be_relayed_is_used_all_the_same() -> None:
    assert played(1, 1).relayed_share == 1.0
