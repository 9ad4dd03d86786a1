"""Expels members of our swarm: receives proofs, keeps them on disk, and acts on them.

``protocol.evidence`` decides whom a proof convicts. This volunteer disconnects a convicted member,
forgets it in membership, and refuses its Hello for the rest of the run (``handshake.py``).
"""

from collections.abc import Sequence
from pathlib import Path

from client.net.libp2p_network import Libp2pNetwork
from client.store.persisted import Persisted
from client.store.records import KeptEvidence
from client.train.ports import Ports
from protocol.effects import Effect, Explain
from protocol.errors import RemoteProtocolError
from protocol.evidence.heard import Heard, stage_of
from protocol.evidence.proof import check, contradiction
from protocol.evidence.proofs import Proofs
from protocol.evidence.statement import Decisive
from protocol.ids import PeerId, sample
from protocol.membership.membership import Membership
from protocol.membership.view import MembershipEffect
from protocol.verdicts import Certificate, Verdict
from protocol.wire.fields import Envelope
from protocol.wire.messages import Statements
from protocol.wire.parts import Proof


class Expulsions:
    """See the module's docstring."""

    def __init__(self, ports: Ports, network: Libp2pNetwork, membership: Membership) -> None:
        self._ports, self._network, self._membership = ports, network, membership
        self.verdicts = membership.verdicts
        self._proofs = Proofs(ports.me, ports.swarm, self.verdicts, ports.linked)
        self._heard = Heard(ports.swarm)
        self._file: Persisted[KeptEvidence] | None = None
        self._unsaved = False

    def keep_in(self, path: Path) -> list[MembershipEffect]:
        """Expel the members convicted by the certificates of a file, and save to it from now on."""
        self._file = Persisted(path, KeptEvidence)
        kept = self._file.load(self._warn) or KeptEvidence()
        found, bad, me = list[Verdict](), 0, self._ports.me
        certificates: tuple[Certificate, ...] = *kept.proofs, *kept.voted_out
        for one in certificates:
            try:
                found.append(check(one, self._ports.swarm))
            except RemoteProtocolError:
                bad += 1
        if bad:
            self._warn(f"{bad} proofs of {path} prove nothing and are dropped")
        return self._act([one for one in found if one.culprit != me and self.verdicts.add(one)])

    def voted_out(self, verdict: Verdict) -> list[MembershipEffect]:
        """A majority of a stage that we know has charged one of its members: cut it off."""
        if verdict.culprit == self._ports.me:
            return []
        self.verdicts.add(verdict)
        return self._perform([verdict])

    def link_up(self, peer: PeerId) -> None:
        """Send a new link the proofs."""
        for effect in self._proofs.link_up(peer):
            self._ports.perform(effect)

    def stated(self, author: PeerId, message: Decisive) -> list[MembershipEffect]:
        """Handle a statement in a round from its author, and pass its statement on to our siblings.

        Raises:
            RemoteProtocolError: it is not signed, or not by its author.
        """
        there = self._siblings(message.stage)
        if author not in there:
            return []  # the seat ignores it, too
        envelope, proof = self._heard.take(author, message)
        if envelope is not None:
            others = [peer for peer in there if peer != author]
            at = message.stage, message.step, message.attempt
            for peer in sample(others, self._ports.me, *at):
                self._ports.send(peer, Statements("decision", (envelope,)))
        return self._proven(proof)

    def passed_on(self, sender: PeerId, envelope: Envelope) -> list[MembershipEffect]:
        """Handle a statement of a sibling that another one passes on; those of other peers are not
        kept, so that they displace nothing.

        Raises:
            RemoteProtocolError: it is no statement, or not signed by its author.
        """
        there, author = self._siblings(stage_of(envelope)), PeerId(envelope.signer)
        if author in self.verdicts or not {sender, author}.issubset(there):
            return []
        return self._proven(self._heard.passed_on(sender, envelope))

    def _siblings(self, stage: int) -> list[PeerId]:
        """Return the other holders of a stage that we are linked with."""
        held = self._ports.held_stages.view.stages
        there = held[stage] if stage < len(held) else ()
        return [replica.peer for replica in there if replica.peer != self._ports.me]

    def _proven(self, proof: Proof | None) -> list[MembershipEffect]:
        if proof is None:
            return []
        return self._perform(self._proofs.found(proof, member=self._is_member(proof)))

    def contradicted(self, held: Envelope, other: Envelope) -> list[MembershipEffect]:
        """Two signed bodies of one author that may contradict each other have arrived.

        Raises:
            RemoteProtocolError: one is not signed by its author.
        """
        return self._proven(contradiction(held, other))

    def receive(self, sender: PeerId, proof: Proof) -> list[MembershipEffect]:
        """Handle a proof from a peer.

        Raises:
            RemoteProtocolError: it proves nothing.
        """
        now, member = self._ports.now(), self._is_member(proof)
        return self._perform(self._proofs.receive(sender, proof, now, member=member))

    def _is_member(self, proof: Proof) -> bool:
        """Whether the culprit works beside us: identities that were linked to convict themselves
        are as free as any."""
        author = PeerId(proof.first.signer)
        member = self._membership.roster.member(author)
        return member is not None and member.linked and not self._membership.is_new(author)

    def _perform(self, effects: Sequence[Effect | Verdict]) -> list[MembershipEffect]:
        out = [effect for effect in effects if isinstance(effect, Verdict)]
        for effect in effects:
            if not isinstance(effect, Verdict):
                self._ports.perform(effect)
        self._unsaved |= bool(out)
        if any(verdict.member for verdict in out):
            self.save()
        return self._act(out)

    def _act(self, out: Sequence[Verdict]) -> list[MembershipEffect]:
        effects: list[MembershipEffect] = []
        for verdict in out:
            words = f"{verdict.words}: it is expelled for the rest of the run"
            self._network.expel(verdict.culprit, words)
            effects += [Explain("membership", words, "warning", (verdict.culprit,))]
            effects += self._membership.expel(verdict.culprit)
        return effects

    def save(self) -> None:
        """Save what is new. A verdict on who has worked is saved at once; the others wait for the
        next minute: a write waits for the disk, and convicted identities are free."""
        if self._unsaved and self._file is not None:
            self._unsaved = False
            self._file.keep(KeptEvidence(self.verdicts.proofs, self.verdicts.votes), self._warn)

    def _warn(self, words: str) -> None:
        self._ports.perform(Explain("membership", words, "warning"))
