"""The handshake: the first exchange on every link, which admits or refuses a peer.

Both sides send Hello. A peer of another swarm, of another protocol, or that the swarm does
not admit (``admission.py``) is refused with the reason. Before its Hello is accepted all other
messages are ignored. Whoever names no swarm is told the manifest in another Hello: an invite is
redeemed that way.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec.structs import replace

from client import __version__
from client.control.snapshot import HOW_TO_UPDATE
from client.train.messaging.admission import Vouching
from client.train.messaging.newer import NewerPrograms
from client.train.ports import Ports
from protocol.effects import Explain, Penalise
from protocol.ids import PeerId, short
from protocol.invite import SwarmFile
from protocol.limits import MAX_REASON_CHARS
from protocol.reachability.machine import Place
from protocol.verdicts import Verdicts
from protocol.wire.messages import Goodbye, Hello

CLIENT = f"volunteer/{__version__}"
"""What this program calls itself."""
PROTOCOL = 22
"""Version of the messages. It rises when one changes, so that peers with different versions
disconnect at once with the reason."""


@dataclass(slots=True)
class Handshake:
    """Knows which links are admitted."""

    file: SwarmFile
    """The swarm."""
    ports: Ports
    verdicts: Verdicts
    """Who is expelled for the rest of the run."""
    vouching: Vouching | None = None
    """Decides who is admitted; None: everybody is."""
    admitted: set[PeerId] = field(default_factory=set)
    greets: Callable[[PeerId], bool] = lambda _peer: True
    """Whether a peer is greeted now: before our inviter has vouched for us, others refuse us."""
    sees: Callable[[PeerId], Place | None] = lambda _peer: None
    """Where we see a peer; None: where no other network does."""
    clock: Callable[[], float] = time.time
    """This machine's clock, Unix seconds."""
    newer: NewerPrograms = field(default_factory=lambda: NewerPrograms(CLIENT, PROTOCOL))
    _told: set[PeerId] = field(default_factory=set)
    """Who has the manifest: it is much longer than the question."""
    _parted: set[PeerId] = field(default_factory=set)
    """Who has said goodbye on this link."""
    early: dict[PeerId, Hello] = field(default_factory=dict)
    """What peers said that are not greeted yet. Who was admitted is told more, and a peer that has
    not heard our Hello would wait for it behind that."""

    def greet(self, peer: PeerId) -> None:
        """A link is up: send our Hello."""
        if self.greets(peer):
            self.ports.send(peer, self._hello(peer))

    def _hello(self, peer: PeerId) -> Hello:
        proof = b""
        if self.vouching is not None and self.greets(peer):
            proof = self.vouching.proof(peer)
        return Hello(PROTOCOL, self.file.swarm, CLIENT, proof, self.clock(), self.sees(peer))

    def gone(self, peer: PeerId) -> None:
        for peers in (self.admitted, self._told, self._parted):
            peers.discard(peer)
        self.early.pop(peer, None)

    def parts(self, peer: PeerId) -> bool:
        """Take a peer's Goodbye; True: it is the first on its link, and the owner is told."""
        first = peer not in self._parted
        self._parted.add(peer)
        return first

    def hello(self, peer: PeerId, message: Hello) -> bool:
        """Take a peer's Hello; True if it has just been admitted."""
        if message.swarm is None and message.protocol == PROTOCOL:
            if peer not in self._told:
                self._told.add(peer)
                told = {"manifest": self.file.encoded, "signature": self.file.signature}
                self.ports.send(peer, replace(self._hello(peer), **told))
            return False
        if not self.greets(peer):
            self.early[peer] = message
            return False
        admitted = self._admit(peer, message)
        if message.swarm == self.file.swarm and self.newer.heard(peer, message):
            words = f"{self.newer.words}; to update this one: {HOW_TO_UPDATE}"
            self.ports.perform(Explain("membership", words))
        return admitted

    def _admit(self, peer: PeerId, hello: Hello) -> bool:
        if refusal := self._refusal(peer, hello):
            self.ports.send(peer, Goodbye(refusal[:MAX_REASON_CHARS]))
            self.ports.perform(Penalise(peer, "hello-refused", 20))
            if hello.protocol != PROTOCOL:
                words = _upgrade(peer, hello.protocol)
                self.ports.perform(Explain("membership", words, "warning", (peer,)))
            return False
        fresh = peer not in self.admitted
        self.admitted.add(peer)
        if self.vouching is not None and fresh:
            self.vouching.link_up(peer)
        return fresh

    def _refusal(self, peer: PeerId, hello: Hello) -> str:
        if hello.protocol != PROTOCOL:
            return f"this swarm speaks protocol {PROTOCOL}, you speak {hello.protocol}"
        if hello.swarm != self.file.swarm:
            return "this is another swarm"
        if peer in self.verdicts:
            return "you are expelled for the rest of the run"
        return "" if self.vouching is None else self.vouching.check(peer, hello.admission).reason


def _upgrade(peer: PeerId, protocol: int) -> str:
    older = "upgrade this program" if protocol > PROTOCOL else "its program is older"
    return f"{short(peer)} speaks protocol {protocol}, this program {PROTOCOL}: {older}"
