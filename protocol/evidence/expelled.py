"""The peers that are expelled for the rest of the run, and the proofs against them.

A proof may come from any peer. It is verified, kept, and sent once to all links; a new link gets
the kept ones. Its author stays out. State: the proofs, the expelled peers, and the allowance of
each link. It never signs and writes nothing itself.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from protocol.effects import Effect, Explain, Send
from protocol.errors import RemoteProtocolError
from protocol.evidence.proof import check, words_of
from protocol.ids import PeerId, SwarmId
from protocol.token_bucket import TokenBucket
from protocol.wire.messages import Evidence
from protocol.wire.parts import Proof

MAX_EXPELLED: Final = 4096
"""Expelled peers that are remembered; the oldest is forgotten first."""
MAX_PROOFS: Final = 64
"""Proofs that are passed on to newcomers, the newest; proofs of strangers give way first."""
MAX_PROOFS_OF_LINK: Final = 16
"""Proofs new to us that a link may bring at once; any peer can make identities that convict
themselves."""
PROOFS_OF_LINK_PER_S: Final = 0.2
MAX_PROOFS_OF_STRANGERS: Final = 64
"""The same for all links together, of proofs about peers that we are not linked with: each proof is
sent on to all links, and many links could bring many."""
PROOFS_OF_STRANGERS_PER_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Expel:
    """A peer is convicted: cut it off and keep it out."""

    peer: PeerId
    words: str


class Expelled:
    """See the module's docstring.

    Args:
        own: our peer id.
        swarm: in which the proofs hold.
    """

    def __init__(self, own: PeerId, swarm: SwarmId) -> None:
        self._own, self._swarm = own, swarm
        self._peers: dict[PeerId, None] = {}
        self._proofs: dict[PeerId, Proof] = {}
        self._strangers: set[PeerId] = set()
        """Convicted peers that were no members: their proofs give way first."""
        self._links: dict[PeerId, TokenBucket] = {}
        self._of_strangers = TokenBucket(
            PROOFS_OF_STRANGERS_PER_S, MAX_PROOFS_OF_STRANGERS, -math.inf
        )
        self._told = False

    def __contains__(self, peer: PeerId) -> bool:
        return peer in self._peers

    def __len__(self) -> int:
        return len(self._peers)

    @property
    def peers(self) -> Collection[PeerId]:
        """The expelled peers, the first convicted first."""
        return self._peers.keys()

    @property
    def proofs(self) -> tuple[Proof, ...]:
        """The proofs that we keep."""
        return tuple(self._proofs.values())

    def restore(self, proofs: Iterable[Proof]) -> tuple[list[Expel], int]:
        """Take the proofs of our disk; return the expulsions, and how many proofs are invalid."""
        found, bad = list[Expel](), 0
        for proof in proofs:
            try:
                found += [e for e in self._convict(proof, member=True) if isinstance(e, Expel)]
            except RemoteProtocolError:
                bad += 1
        return found, bad

    def link_up(self, peer: PeerId, now: float) -> list[Effect]:
        """Tell a new link what we know."""
        self._links[peer] = TokenBucket(PROOFS_OF_LINK_PER_S, MAX_PROOFS_OF_LINK, now)
        return [Send(peer, Evidence(proof)) for proof in self._proofs.values()]

    def link_down(self, peer: PeerId) -> None:
        """Forget a link."""
        self._links.pop(peer, None)

    def found(self, proof: Proof, *, member: bool) -> list[Effect | Expel]:
        """Take a contradiction that we have seen ourselves, and tell all links.

        Args:
            proof: what we have seen.
            member: whether its author is a member that we are linked with.

        Raises:
            RemoteProtocolError: as ``check``.
        """
        return self._convict(proof, member=member)

    def receive(
        self, sender: PeerId, proof: Proof, now: float, *, member: bool
    ) -> list[Effect | Expel]:
        """Take a proof that a link brings; see ``found``.

        Args:
            sender: the link that brings it.
            proof: the proof.
            now: monotonic seconds.
            member: whether its author is a member that we are linked with.

        Raises:
            RemoteProtocolError: as ``check``.
        """
        allowance = self._links.get(sender)
        known = PeerId(proof.first.signer) in self._peers
        if known or allowance is None or not allowance.has(1, now):
            return []
        if not member and not self._of_strangers.take(1, now):
            return []
        allowance.take(1, now)
        return self._convict(proof, member=member, source=sender)

    def _convict(
        self, proof: Proof, *, member: bool, source: PeerId | None = None
    ) -> list[Effect | Expel]:
        culprit = check(proof, self._swarm)
        if culprit == self._own:
            return self._accused()
        if culprit in self._peers:
            return []
        self._keep(culprit, proof, member=member)
        words = words_of(proof)
        links = [peer for peer in self._links if peer not in (source, culprit)]
        tell = [Send(peer, Evidence(proof)) for peer in links]
        return [Expel(culprit, f"{words}: it is expelled for the rest of the run"), *tell]

    def _keep(self, culprit: PeerId, proof: Proof, *, member: bool) -> None:
        if len(self._peers) >= MAX_EXPELLED:
            self._forget(next(iter(self._peers)))
        if len(self._proofs) >= MAX_PROOFS:
            oldest = next((p for p in self._proofs if p in self._strangers), None)
            if oldest is None and not member:
                self._peers[culprit] = None
                return
            del self._proofs[oldest if oldest is not None else next(iter(self._proofs))]
        self._peers[culprit], self._proofs[culprit] = None, proof
        if not member:
            self._strangers.add(culprit)

    def _forget(self, peer: PeerId) -> None:
        del self._peers[peer]
        self._proofs.pop(peer, None)
        self._strangers.discard(peer)

    def _accused(self) -> list[Effect | Expel]:
        """Somebody else signs with our key: say so, once."""
        if self._told:
            return []
        self._told = True
        words = (
            "two different statements were signed with this volunteer's key under one number: "
            "others shut this identity out. Its home was probably copied to a second machine or "
            "restored from a backup while it ran. Stop all but one, and join with a new home"
        )
        return [Explain("membership", words, "error")]
