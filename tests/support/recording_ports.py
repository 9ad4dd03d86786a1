"""Ports of one part of the training: what it sends and performs is kept."""

from collections.abc import Collection
from typing import Any

from client.train.ports import StageHolder
from protocol.amendments.book import Amendments
from protocol.effects import Effect, Explain
from protocol.ids import PeerId
from protocol.manifest import Manifest
from protocol.wire.messages import Message
from tests.support.protocol_examples import SWARM, manifest


class RecordingPorts:
    """Implements ``Ports`` for a part that signs nothing."""

    def __init__(self, me: str = "me", run: Manifest | None = None) -> None:
        self.me, self.swarm, self.manifest = PeerId(me), SWARM, run or manifest()
        self.amendments = Amendments(self.manifest, SWARM)
        self.held_stages = StageHolder(self.manifest.stage_count)
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

    def ability_changed(self) -> None:
        pass

    def messages(self) -> list[Message]:
        return [message for _, message in self.sent]

    def told(self) -> list[Explain]:
        return [effect for effect in self.done if isinstance(effect, Explain)]

    def forget(self) -> None:
        """Begin anew with what is kept."""
        for kept in (self.sent, self.payloads, self.done):
            kept.clear()  # type: ignore[attr-defined]
