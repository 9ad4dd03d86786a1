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
from protocol.evidence.heard import Heard
from protocol.evidence.proof import check, place_of
from protocol.evidence.proofs import Proofs
from protocol.evidence.statement import Decisive
from protocol.ids import PeerId, sample
from protocol.membership.membership import Membership
from protocol.verdicts import Certificate, Verdict
from protocol.wire.fields import Envelope
from protocol.wire.messages import Statements
from protocol.wire.parts import Proof


class Expulsions:
    """See the module's docstring; ``path``: of the file; None: nothing is kept."""

    def __init__(
        self, ports: Ports, network: Libp2pNetwork, membership: Membership, path: Path | None
    ) -> None:
        self._ports, self._network, self._membership = ports, network, membership
        self.verdicts = membership.verdicts
        self._proofs = Proofs(ports.me, ports.swarm, self.verdicts, ports.linked)
        self._heard = Heard(ports.swarm)
        self._file = Persisted(path, KeptEvidence, ports.warn)
        self._unsaved = False

    def restore(self) -> None:
        """Expel the members convicted by the certificates of the file."""
        kept = self._file.load() or KeptEvidence()
        found, bad, me = list[Verdict](), 0, self._ports.me
        certificates: tuple[Certificate, ...] = *kept.proofs, *kept.voted_out
        for one in certificates:
            try:
                found.append(check(one, self._ports.swarm))
            except RemoteProtocolError:
                bad += 1
        if bad:
            self._ports.warn(f"{bad} proofs of {self._file.path} prove nothing and are dropped")
        self._act([one for one in found if one.culprit != me and self.verdicts.add(one)])

    def voted_out(self, verdict: Verdict) -> None:
        """A majority of a stage that we know has charged one of its members: cut it off."""
        if verdict.culprit != self._ports.me:
            self.verdicts.add(verdict)
            self._perform([verdict])

    def link_up(self, peer: PeerId) -> None:
        self._ports.perform(*self._proofs.link_up(peer))

    def stated(self, author: PeerId, message: Decisive) -> None:
        """Handle a statement in a round from its author, and pass its statement on to our siblings.
        Raises RemoteProtocolError: it is not signed, or not by its author."""
        there = self._siblings(message.stage)
        if author not in there:
            return  # the seat ignores it, too
        envelope, proof = self._heard.take(author, message)
        if envelope is not None:
            others = [peer for peer in there if peer != author]
            at = message.stage, message.step, message.attempt
            for peer in sample(others, self._ports.me, *at):
                self._ports.send(peer, Statements("decision", (envelope,)))
        self._proven(proof)

    def passed_on(self, sender: PeerId, envelope: Envelope) -> None:
        """Handle a statement of a sibling that another one passes on; those of other peers are not
        kept, so that they displace nothing. Raises RemoteProtocolError: it is no statement, or not
        signed by its author."""
        _, stage, *_ = place_of(envelope)
        there, author = self._siblings(stage), PeerId(envelope.signer)
        if author not in self.verdicts and {sender, author}.issubset(there):
            self._proven(self._heard.passed_on(sender, envelope))

    def _siblings(self, stage: int) -> list[PeerId]:
        """Return the other holders of a stage that we are linked with."""
        held = self._ports.held_stages.view.stages
        there = held[stage] if stage < len(held) else ()
        return [replica.peer for replica in there if replica.peer != self._ports.me]

    def _proven(self, proof: Proof | None) -> None:
        if proof is not None:
            self._perform(self._proofs.found(proof, member=self._is_member(proof)))

    def receive(self, sender: PeerId, proof: Proof) -> None:
        """Handle a proof from a peer. Raises RemoteProtocolError: it proves nothing."""
        now, member = self._ports.now(), self._is_member(proof)
        self._perform(self._proofs.receive(sender, proof, now, member=member))

    def _is_member(self, proof: Proof) -> bool:
        """Whether the culprit works beside us: identities that were linked to convict themselves
        are as free as any."""
        author = PeerId(proof.first.signer)
        member = self._membership.roster.member(author)
        return member is not None and member.linked and not self._membership.is_new(author)

    def _perform(self, effects: Sequence[Effect | Verdict]) -> None:
        out = [effect for effect in effects if isinstance(effect, Verdict)]
        self._ports.perform(*(one for one in effects if not isinstance(one, Verdict)))
        self._unsaved |= bool(out)
        if any(verdict.member for verdict in out):
            self.save()
        self._act(out)

    def _act(self, out: Sequence[Verdict]) -> None:
        for verdict in out:
            words = f"{verdict.words}: it is expelled for the rest of the run"
            self._network.expel(verdict.culprit, words)
            told = Explain("membership", words, "warning", (verdict.culprit,))
            self._ports.perform(told, *self._membership.expel(verdict.culprit))

    def save(self) -> None:
        """Save what is new. A verdict on who has worked is saved at once; the others wait for the
        next minute: a write waits for the disk, and convicted identities are free."""
        if self._unsaved:
            self._unsaved = False
            self._file.keep(KeptEvidence(self.verdicts.proofs, self.verdicts.votes))
