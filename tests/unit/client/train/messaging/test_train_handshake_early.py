"""A newcomer that reaches its inviter through a relay: who relays is greeted once that helps."""

from __future__ import annotations

from typing import Any, cast

from client.train.messaging.handshake import PROTOCOL, Handshake
from client.train.ports import Ports
from protocol.ids import PeerId, SwarmId
from protocol.wire.messages import Hello, Message

ME, RELAY, SWARM = PeerId("me"), PeerId("relay"), SwarmId("5" * 64)


class Sent:
    """Keeps what is sent."""

    def __init__(self) -> None:
        self.messages: list[tuple[PeerId, Message]] = []

    def send(self, peer: PeerId, message: Message, payload: bytes = b"") -> None:
        self.messages.append((peer, message))

    def perform(self, effect: Any) -> None:
        raise AssertionError(effect)


def test_a_relay_is_neither_greeted_nor_admitted_before_somebody_has_vouched_for_us() -> None:
    """Admitted, it would be sent records, behind which our Hello is never read."""
    sent, vouched = Sent(), False
    handshake = Handshake(ME, SWARM, "test", b"", b"", cast(Ports, sent))
    handshake.greets = lambda peer: vouched or peer != RELAY
    hello = Hello(PROTOCOL, SWARM, "test")
    handshake.greet(RELAY)
    assert not handshake.hello(RELAY, hello)
    assert (sent.messages, handshake.admitted) == ([], set())
    vouched = True
    handshake.greet(RELAY)
    assert handshake.hello(RELAY, handshake.early.pop(RELAY))
    assert [peer for peer, _ in sent.messages] == [RELAY]
    assert handshake.admitted == {RELAY}


def test_what_a_relay_said_is_forgotten_with_its_link() -> None:
    handshake = Handshake(ME, SWARM, "test", b"", b"", cast(Ports, Sent()))
    handshake.greets = lambda peer: False
    handshake.hello(RELAY, Hello(PROTOCOL, SWARM, "test"))
    handshake.gone(RELAY)
    assert handshake.early == {}
