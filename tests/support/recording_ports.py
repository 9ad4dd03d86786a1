"""Ports of one part of the training: what it sends and performs is kept."""

from collections.abc import Collection
from typing import Any

import trio

from client.train.ports import StageHolder
from protocol.amendments.book import Amendments
from protocol.effects import Effect, Explain, Penalise, Send
from protocol.ids import PeerId
from protocol.manifest import Manifest
from protocol.wire.fields import Envelope
from protocol.wire.messages import Message
from tests.support.protocol_examples import SWARM, manifest, signer


class RecordingPorts:
    """Implements ``Ports``; signs as number 1."""

    def __init__(self, me: str = "me", run: Manifest | None = None) -> None:
        self.me, self.swarm, self.manifest = PeerId(me), SWARM, run or manifest()
        self.amendments = Amendments(self.manifest, SWARM)
        self.held_stages = StageHolder(self.manifest.stage_count)
        self.time: float | None = 100.0
        """None: trio's."""
        self.sent: list[tuple[PeerId, Any]] = []
        self.payloads: list[bytes] = []
        """Of what was sent."""
        self.done: list[Effect] = []
        self.links: Collection[PeerId] = ()

    def now(self) -> float:
        return trio.current_time() if self.time is None else self.time

    def send(self, peer: PeerId, message: Message, payload: bytes = b"") -> None:
        self.sent.append((peer, message))
        self.payloads.append(payload)

    def linked(self) -> Collection[PeerId]:
        return self.links

    def sign(self, kind: str, body: bytes) -> Envelope:
        return signer(1).sign(kind, body, SWARM)

    def perform(self, *effects: Effect) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                self.send(effect.peer, effect.message)
            else:
                self.done.append(effect)

    def warn(self, words: str) -> None:
        self.perform(Explain("swarm", words, "warning"))

    def ability_changed(self) -> None:
        pass

    def messages(self) -> list[Message]:
        return [message for _, message in self.sent]

    def told(self) -> list[Explain]:
        return [effect for effect in self.done if isinstance(effect, Explain)]

    def warnings(self) -> list[str]:
        return [said.words for said in self.told() if said.level == "warning"]

    def blamed(self) -> list[PeerId]:
        return [effect.peer for effect in self.done if isinstance(effect, Penalise)]

    def forget(self) -> None:
        """Begin anew with what is kept."""
        for kept in (self.sent, self.payloads, self.done):
            kept.clear()  # type: ignore[attr-defined]
