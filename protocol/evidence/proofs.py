"""Proofs that travel: whoever brings one, it convicts its author everywhere.

A proof is verified, kept with the verdict (``protocol/verdicts.py``), and sent once to all links; a
new link gets the kept ones. State: what each link may bring. It signs and writes nothing.
"""

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Final

from protocol.effects import Effect, Explain, Send
from protocol.evidence.proof import check
from protocol.ids import PeerId, SwarmId
from protocol.token_bucket import Rate, TokenBuckets
from protocol.verdicts import Verdict, Verdicts
from protocol.wire.messages import Statements
from protocol.wire.parts import Proof

OF_LINK: Final = Rate(0.2, 16)
"""Proofs new to us that a link may bring; any peer can make identities that convict themselves."""
OF_STRANGERS: Final = Rate(1.0, 64)
"""The same for all links together, of proofs about peers that we are not linked with: each proof is
sent on to all links, and many links could bring many."""
MAX_BRINGERS: Final = 1024


class Proofs:
    """See the module's docstring; ``linked`` returns the peers that we are linked with."""

    def __init__(
        self,
        own: PeerId,
        swarm: SwarmId,
        verdicts: Verdicts,
        linked: Callable[[], Collection[PeerId]],
    ) -> None:
        self._own, self._swarm, self._verdicts, self._linked = own, swarm, verdicts, linked
        self._allowance = TokenBuckets[str](MAX_BRINGERS)
        self._told = False

    def link_up(self, peer: PeerId) -> list[Effect]:
        """Tell a new link what we know."""
        return [Send(peer, _told(proof)) for proof in self._verdicts.proofs]

    def found(
        self, proof: Proof, *, member: bool, source: PeerId | None = None
    ) -> list[Effect | Verdict]:
        """Take a proof, and tell all links.

        Args:
            member: whether its author is a member that we are linked with.
            source: the link that has brought it; None: we have seen the contradiction ourselves.

        Raises:
            RemoteProtocolError: as ``check``.
        """
        verdict = replace(check(proof, self._swarm), member=member)
        if verdict.culprit == self._own:
            return self._accused()
        if not self._verdicts.add(verdict):
            return []
        links = [peer for peer in sorted(self._linked()) if peer not in (source, verdict.culprit)]
        return [verdict, *(Send(peer, _told(proof)) for peer in links)]

    def receive(
        self, sender: PeerId, proof: Proof, now: float, *, member: bool
    ) -> list[Effect | Verdict]:
        """Take a proof that a link brings, if that has brought few; see ``found``."""
        if PeerId(proof.first.signer) in self._verdicts:
            return []
        rates: dict[str, Rate] = {sender: OF_LINK}
        if not member:
            rates["strangers"] = OF_STRANGERS
        if not self._allowance.take(rates, now):
            return []
        return self.found(proof, member=member, source=sender)

    def _accused(self) -> list[Effect | Verdict]:
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


def _told(proof: Proof) -> Statements:
    return Statements("proof", proof.envelopes)
