"""Who is expelled from our swarm: takes proofs in, keeps them on disk, and acts on them.

``protocol.evidence`` decides whom a proof convicts. Whoever is convicted is cut off, forgotten by
membership, and not linked again by this volunteer as long as the run lasts.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from client.net.network import Network
from client.store.proofs import DamagedProofs, load_proofs, save_proofs
from client.train.ports import Ports
from protocol.effects import Effect, Explain
from protocol.evidence.expelled import Expel, Expelled
from protocol.evidence.proof import contradiction
from protocol.ids import PeerId, SwarmId
from protocol.membership.membership import Membership
from protocol.membership.view import MembershipEffect
from protocol.wire.fields import Envelope
from protocol.wire.parts import Proof


class Expulsions:
    """See the module's docstring."""

    def __init__(
        self,
        ports: Ports,
        network: Network,
        membership: Membership,
        swarm: SwarmId,
    ) -> None:
        self._ports, self._network, self._membership = ports, network, membership
        self.expelled = Expelled(network.peer_id, swarm)
        self._path: Path | None = None

    def keep_in(self, path: Path) -> list[MembershipEffect]:
        """Expel whom the proofs of a file convict, and save to it from now on."""
        self._path = path
        try:
            found, bad = self.expelled.restore(load_proofs(path))
        except (DamagedProofs, OSError) as error:
            self._warn(f"the proofs of who was expelled cannot be read, beginning anew: {error}")
            return []
        if bad:
            self._warn(f"{bad} proofs of {path} prove nothing and are dropped")
        return self._act(found)

    def link_up(self, peer: PeerId) -> None:
        """Tell a new link who is out."""
        for effect in self.expelled.link_up(peer, self._ports.now()):
            self._ports.perform(effect)

    def contradicted(self, held: Envelope, other: Envelope) -> list[MembershipEffect]:
        """Two records with one number have come to us; both signatures are verified."""
        proof = contradiction(held, other)
        if proof is None:
            return []
        return self._perform(self.expelled.found(proof, member=self._is_member(proof)))

    def receive(self, sender: PeerId, proof: Proof) -> list[MembershipEffect]:
        """Take a proof that a peer has brought.

        Raises:
            RemoteProtocolError: it proves nothing.
        """
        now, member = self._ports.now(), self._is_member(proof)
        return self._perform(self.expelled.receive(sender, proof, now, member=member))

    def _is_member(self, proof: Proof) -> bool:
        return self._membership.roster.member(PeerId(proof.first.signer)) is not None

    def _perform(self, effects: Sequence[Effect | Expel]) -> list[MembershipEffect]:
        out = [effect for effect in effects if isinstance(effect, Expel)]
        for effect in effects:
            if not isinstance(effect, Expel):
                self._ports.perform(effect)
        if out:
            self._save()
        return self._act(out)

    def _act(self, out: Sequence[Expel]) -> list[MembershipEffect]:
        effects: list[MembershipEffect] = []
        for expel in out:
            self._network.expel(expel.peer, expel.words)
            effects += [Explain("membership", expel.words, "warning")]
            effects += self._membership.expel(expel.peer)
        return effects

    def _save(self) -> None:
        if self._path is None:
            return
        try:
            save_proofs(self._path, self.expelled.proofs)
        except OSError as error:  # a full disk must not stop training
            self._warn(f"the proofs of who was expelled cannot be written: {error.strerror}")

    def _warn(self, words: str) -> None:
        self._ports.perform(Explain("membership", words, "warning"))
