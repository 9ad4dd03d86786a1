"""Who relays and who needs a relay, by what the network has seen."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from client.node.relaying import CANDIDATES, PATIENCE_S, Relaying
from client.train.engine import Engine
from protocol.effects import Explain
from protocol.ids import PeerId

ME, RELAY, PRIVATE = PeerId("me"), PeerId("a relay"), PeerId("private")
AT = "/ip4/203.0.113.7/tcp/4001"


@dataclass
class World:
    """What ``Relaying`` sees and does."""

    reached: bool = False
    is_outside: bool = True
    entered: bool = True
    quota: bool = True
    guests: Sequence[PeerId] = ()
    """Others that relay, whom work has not proven."""
    setting: str = "25%"
    always: bool = False
    offers: dict[str, Any] = field(default_factory=dict)
    lent: list[float] = field(default_factory=list)
    needed: bool | None = None
    candidates: Mapping[PeerId, Sequence[str]] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)

    def relaying(self) -> Relaying:
        self.passing = SimpleNamespace(
            offer=self._offer, machine=SimpleNamespace(offers=False, circuits=0)
        )
        self.reaching = SimpleNamespace(update=self._update, relays=(), addresses=[])
        advert = SimpleNamespace(entered=True, upload_bytes_per_s=8e6, change=self._change)
        members = [
            SimpleNamespace(peer=peer, advert=SimpleNamespace(addresses=(AT,), relay_bytes_per_s=r))
            for peer, r in ((RELAY, 1e6), (PRIVATE, 0.0), *((g, 1e6) for g in self.guests))
        ]
        self.peer_id = ME
        advert.entered = self.entered
        roster = SimpleNamespace(members=lambda: members, is_guest=self._is_guest)
        engine = SimpleNamespace(
            membership=SimpleNamespace(roster=roster),
            own_advert=advert,
            reach=SimpleNamespace(reachable=False),
            event_sink=SimpleNamespace(explain=self._explain),
            network=self,
        )
        setting, always = self.setting, self.always
        return Relaying(cast(Engine, engine), setting, lambda: self.quota, always=always)

    def _change(self, relay_bytes_per_s: float) -> None:
        self.lent.append(relay_bytes_per_s)

    def _is_guest(self, peer: PeerId) -> bool:
        return peer in self.guests

    def _offer(self, **how: object) -> None:
        self.offers = how
        self.passing.machine.offers = how["relays"]

    def _update(self, relays: Mapping[PeerId, Sequence[str]], *, needed: bool) -> None:
        self.candidates, self.needed = relays, needed

    def _explain(self, effect: Explain) -> None:
        self.said.append(effect.words)


async def after_a_while(world: World) -> Relaying:
    relaying = world.relaying()
    relaying.look()
    assert not world.needed, "others have had no time to dial us"
    await trio.sleep(PATIENCE_S)
    relaying.look()
    return relaying


@pytest.mark.parametrize(
    ("world", "rate"),
    [
        (World(reached=True), 2e6),
        (World(reached=True, setting="1MB/s"), 1e6),
        (World(reached=True, setting="off"), 0.0),
        (World(reached=True, quota=False), 0.0),
        (World(reached=True, entered=False), 0.0),
        (World(reached=False), 0.0),
        (World(reached=False, always=True), 2e6),
        (World(reached=False, always=True, setting="off"), 0.0),
    ],
)
async def test_who_relays(world: World, rate: float) -> None:
    world.relaying().look()
    assert world.offers.get("rate_bytes_per_s", 0.0) == rate
    assert world.lent == [rate]


@pytest.mark.parametrize(
    ("world", "needed"),
    [
        (World(), True),
        (World(reached=True), False),
        (World(is_outside=False), False),
        (World(entered=False), False),
        (World(always=True), False),
    ],
)
async def test_who_needs_relays(
    world: World, needed: bool, autojump_clock: trio.testing.MockClock
) -> None:
    await after_a_while(world)
    assert world.needed == needed
    assert world.candidates == ({RELAY: (AT,)} if needed else {})


async def test_who_has_worked_is_asked_to_relay_before_a_crowd_that_has_not(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World(guests=[PeerId(f"guest {number}") for number in range(2 * CANDIDATES)])
    await after_a_while(world)
    assert next(iter(world.candidates)) == RELAY
    assert len(world.candidates) == CANDIDATES


async def test_whoever_is_dialled_after_all_needs_none_and_relays(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World()
    relaying = await after_a_while(world)
    world.reaching.relays = (RELAY,)
    relaying.look()
    assert "reached through" in world.said[-1]
    world.reached, world.reaching.relays = True, ()
    relaying.look()
    assert not world.needed
    assert world.offers["relays"]
    assert "it relays" in world.said[-1]
    said = len(world.said)
    relaying.look()
    assert len(world.said) == said


async def test_who_leaves_relays_no_longer(autojump_clock: trio.testing.MockClock) -> None:
    world = World(reached=True)
    relaying = world.relaying()
    relaying.look()
    world.passing.machine.circuits = 1  # it does not end
    began = trio.current_time()
    await relaying.leave()
    assert world.offers["relays"] is False
    assert world.offers["drain_s"] > 0
    assert world.lent[-1] == 0.0
    assert trio.current_time() - began < 10
    assert not world.needed
