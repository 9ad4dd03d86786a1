"""A swarm of ``Membership`` machines over lossy links, with a clock that the test moves."""

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from protocol.effects import Explain, Penalise, Publish, Send
from protocol.ids import PeerId
from protocol.membership.membership import Membership
from protocol.membership.view import MembershipEffect
from protocol.wire.messages import (
    Heartbeat,
    Message,
    RecordDigest,
    Records,
    decode_message,
    encode_message,
)
from tests.support.protocol_examples import SWARM, WALL, advert, peer, signer


@dataclass
class World:
    """Peers 0..n-1; every message crosses the wire as bytes, or is lost."""

    size: int
    seed: int = 0
    loss: float = 0.0
    stages: int = 4
    now: float = 100.0
    members: dict[PeerId, Membership] = field(default_factory=dict)
    links: set[frozenset[PeerId]] = field(default_factory=set)
    sent: Counter[str] = field(default_factory=Counter)
    seen: dict[PeerId, list[MembershipEffect]] = field(default_factory=dict)
    stopped: set[PeerId] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.numbers = {peer(n): n for n in range(self.size)}
        self.in_flight: list[tuple[PeerId, PeerId, Message]] = []
        for name in self.numbers:
            self.members[name] = Membership(name, SWARM, self.stages)
            self.seen[name] = []

    @property
    def wall(self) -> float:
        return WALL + self.now

    def advertise(self) -> None:
        for name, member in self.members.items():
            self.perform(name, member.describe(advert(), self.now))

    def link(self, a: PeerId, b: PeerId) -> None:
        self.links.add(frozenset((a, b)))
        self.perform(a, self.members[a].link_up(b, self.now))
        self.perform(b, self.members[b].link_up(a, self.now))

    def cut(self, a: PeerId, b: PeerId) -> None:
        self.links.discard(frozenset((a, b)))
        self.perform(a, self.members[a].link_down(b, "connection lost", self.now))
        self.perform(b, self.members[b].link_down(a, "connection lost", self.now))

    def link_ring(self) -> None:
        names = list(self.members)
        for a, b in zip(names, names[1:] + names[:1], strict=True):
            self.link(a, b)

    def link_all(self) -> None:
        names = list(self.members)
        for index, a in enumerate(names):
            for b in names[index + 1 :]:
                self.link(a, b)

    def perform(self, name: PeerId, effects: Iterable[MembershipEffect]) -> None:
        for effect in effects:
            self.seen[name].append(effect)
            assert not isinstance(effect, Explain) or effect.level != "error", effect.words
            if isinstance(effect, Send):
                self.sent[type(effect.message).__name__] += 1
                self.in_flight.append((name, effect.peer, effect.message))
            elif isinstance(effect, Publish):
                member, key = self.members[name], signer(self.numbers[name])
                self.perform(name, member.publish(effect, key, self.now, self.wall))

    def deliver(self) -> None:
        """Deliver until nothing is in flight, in any order, losing some."""
        for _ in range(100_000):
            if not self.in_flight:
                return
            index = self.random.randrange(len(self.in_flight))
            sender, to, message = self.in_flight.pop(index)
            linked = frozenset((sender, to)) in self.links
            if not linked or to in self.stopped or self.random.random() < self.loss:
                continue
            arrived = decode_message(encode_message(message))
            assert isinstance(arrived, Records | RecordDigest | Heartbeat)
            self.perform(to, self.members[to].receive(sender, arrived, self.now, self.wall))
        raise AssertionError("the machines never fall silent")

    def run(self, seconds: float, step: float = 0.5) -> None:
        end = self.now + seconds
        self.deliver()
        while self.now < end:
            self.now += step
            for name, member in self.members.items():
                deadline = member.next_deadline()
                if name not in self.stopped and deadline is not None and deadline <= self.now:
                    self.perform(name, member.tick(self.now, self.wall))
            self.deliver()

    def agree(self) -> bool:
        """Whether every peer sees every peer."""
        everybody = tuple(sorted(self.members))
        return all(member.roster.live() == everybody for member in self.members.values())

    def penalties(self) -> list[Penalise]:
        return [e for seen in self.seen.values() for e in seen if isinstance(e, Penalise)]
