"""Ports of one part of the training: what it sends and performs is kept."""

from collections.abc import Collection
from typing import Any

from protocol.effects import Effect, Explain
from protocol.ids import PeerId
from protocol.wire.messages import Message


class RecordingPorts:
    """Implements ``Ports`` for a part that signs nothing."""

    def __init__(self) -> None:
        self.time = 100.0
        self.sent: list[tuple[PeerId, Any]] = []
        self.payloads: list[bytes] = []
        """Of what was sent."""
        self.done: list[Effect] = []
        self.links: Collection[PeerId] = ()

    def now(self) -> float:
        return self.time

    def send(self, peer: PeerId, message: Message, payload: bytes = b"") -> None:
        self.sent.append((peer, message))
        self.payloads.append(payload)

    def linked(self) -> Collection[PeerId]:
        return self.links

    def sign(self, kind: str, body: bytes) -> Any:
        raise AssertionError("nothing is signed")

    def perform(self, effect: Effect) -> None:
        self.done.append(effect)

    def messages(self) -> list[Message]:
        return [message for _, message in self.sent]

    def told(self) -> list[Explain]:
        return [effect for effect in self.done if isinstance(effect, Explain)]

    def forget(self) -> None:
        """Begin anew with what is kept."""
        for kept in (self.sent, self.payloads, self.done):
            kept.clear()  # type: ignore[attr-defined]
