"""Members that make waypoints: the real machines, records and links delivered at once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from protocol.effects import Publish, Send
from protocol.ids import PeerId
from protocol.waypoints.machine import WaypointEffect, Waypoints
from protocol.waypoints.part import PART, encode_part
from protocol.wire.messages import ChainLink
from protocol.wire.parts import WaypointLink
from tests.support.protocol_examples import SWARM, signer

EVERY, STEPS = 20, 1000
NOW = 100.0


def state(stage: int, version: int, run: str = "true") -> bytes:
    """The hash of a version."""
    return f"{run} {stage} {version}".encode().ljust(32, b".")


@dataclass
class WaypointWorld:
    """Volunteers by the number of their key: ``seats`` says who serves which stage.

    Everybody is told of every record, and has worked with everybody in its own and the
    neighbouring stages.
    """

    seats: list[list[int]]
    founder: int = 1
    era: int = 0
    machines: dict[int, Waypoints] = field(default_factory=dict)
    unknown: set[int] = field(default_factory=set)
    """Those with whom nobody has worked."""

    def __post_init__(self) -> None:
        for number in sorted({n for stage in self.seats for n in stage}):
            self.machines[number] = self.made(number)
        self.see()

    def made(self, number: int) -> Waypoints:
        """A machine that knows only the manifest."""
        who = signer(number)
        return Waypoints(
            who.peer,
            signer(self.founder).peer,
            len(self.seats),
            EVERY,
            STEPS,
            SWARM,
            lambda part: who.sign(PART, encode_part(part), SWARM).signature,
            lambda peer: peer not in {signer(n).peer for n in self.unknown},
        )

    def see(self) -> None:
        """Everybody sees who serves what."""
        serving = [[signer(n).peer for n in stage] for stage in self.seats]
        for number, machine in list(self.machines.items()):
            self.perform(number, machine.update(self.era, serving))

    def close(self, version: int, run: str = "true", only: Iterable[int] = ()) -> None:
        """Every replica, or only some, closes the step that makes this version."""
        chosen = set(only)
        for stage, numbers in enumerate(self.seats):
            roll = [signer(n).peer for n in numbers]
            for number in numbers:
                if not chosen or number in chosen:
                    made = stage, self.era, version, state(stage, version, run), roll
                    self.perform(number, self.machines[number].closed(*made))

    def perform(self, number: int, effects: Iterable[WaypointEffect]) -> None:
        """Tell the others what one publishes."""
        for effect in effects:
            if isinstance(effect, Publish):
                self.tell(signer(number).peer, effect.body)

    def tell(self, author: PeerId, body: bytes) -> None:
        """Everybody gets a record."""
        for other, machine in list(self.machines.items()):
            if signer(other).peer != author:
                self.perform(other, machine.receive(author, body))

    def versions(self) -> set[int]:
        """The ends of the members' chains."""
        return {m.newest.version if m.newest else 0 for m in self.machines.values()}

    def shown(self, to: Waypoints, chain: Iterable[WaypointLink], by: int = 2) -> None:
        """A peer shows its chain over a new link."""
        who = signer(by).peer
        to.link_up(who, NOW)
        for index, link in enumerate(chain):
            to.link(who, ChainLink(index, link), NOW)


def links_of(effects: Iterable[WaypointEffect]) -> list[WaypointLink]:
    """The links that effects send."""
    sent = [e.message for e in effects if isinstance(e, Send)]
    return [message.link for message in sent if isinstance(message, ChainLink)]
