"""Audits in the chaos world: what a volunteer signs, and whom a majority expels.

It does for a simulated seat what ``client/train/stage/seat_driver.py`` does: it makes digests and
signatures.
Checked: no honest volunteer is ever expelled, nobody is Ready for a step with a contribution of a
member that it has expelled, and no honest volunteer's segment contradicts what it has committed to.
"""

from collections import Counter
from functools import partial
from typing import Final

from msgspec.structs import replace

from client.lab.simulate.chaos.swarm import ChaosSwarm
from client.lab.simulate.chaos.volunteer import Volunteer
from client.lab.simulate.invariants import expect
from client.lab.simulate.seats import Parts
from client.lab.simulate.worker import payload_digest
from protocol.audit.charges import Charges
from protocol.audit.commitment import contents, root_of
from protocol.audit.record import Grade
from protocol.audit.terms import AuditTerms
from protocol.evidence.statement import statement_of
from protocol.ids import PeerId, SwarmId, short
from protocol.pipeline.effects import PayloadKey
from protocol.rounds.effects import CommitTo
from protocol.verdicts import Verdict
from protocol.wire.messages import Ready, Segment
from protocol.wire.statement import encode_statement

SWARM: Final = SwarmId("cd" * 32)


class Audits:
    """See the module's docstring."""

    def __init__(self, swarm: ChaosSwarm) -> None:
        self._swarm = swarm
        self._told: set[PeerId] = set()
        self._of_past_processes = Counter[Grade | None]()
        """The results of honest volunteers' audits."""
        self.lasted: list[int] = []
        """Steps that the liar has stayed in after it began."""

    def terms(self, volunteer: Volunteer) -> AuditTerms | None:
        """Return what the audits of a volunteer's seat go by."""
        config = self._swarm.config
        if not config.audits or volunteer.signer is None:
            return None
        if volunteer.audits is None:
            secret = payload_digest(volunteer.peer.encode())
            volunteer.audits = AuditTerms(
                config.audits,
                secret,
                partial(volunteer.signer.sign, context=SWARM),
                charges=Charges(SWARM),
                verdicts=volunteer.verdicts,
            )
        return volunteer.audits

    def restarted(self, volunteer: Volunteer) -> None:
        """A process has ended: on its disk is only who was expelled, with the charges."""
        if volunteer.audits is not None:
            if not volunteer.lies:
                self._of_past_processes += _results(volunteer.audits)
            volunteer.audits = None
        for verdict in volunteer.verdicts:
            volunteer.contacts.expel(verdict.culprit)

    @property
    def found(self) -> Counter[str]:
        """The results of all honest volunteers' audits."""
        honest = [v for v in self._swarm.volunteers.values() if not v.lies]
        terms = (volunteer.audits for volunteer in honest if volunteer.audits is not None)
        found = sum(map(_results, terms), self._of_past_processes)
        return Counter({grade.name.lower() if grade else "void": n for grade, n in found.items()})

    @property
    def undiscovered(self) -> int:
        """1 if a liar is still in that should be out."""
        liars = [v for v in self._swarm.volunteers.values() if v.lies]
        wrong = {"gradients", "sums"}.intersection(self._swarm.config.lies)
        return int(bool(wrong) and any(v.peer not in self._told for v in liars))

    def perform(self, peer: Volunteer, effect: CommitTo | Verdict) -> None:
        """Perform an effect of a seat's audits."""
        if isinstance(effect, Verdict):
            self._convicted(peer, effect)
        if isinstance(effect, CommitTo):
            self._commit(peer, effect)

    def _commit(self, peer: Volunteer, commit: CommitTo) -> None:
        seat, signer, of, held = peer.seat, peer.signer, commit.commitment, peer.payloads
        if seat is None or signer is None:
            return
        rows = {
            m: tuple(payload_digest(held[key]) for key in keys)
            for m, keys in commit.microbatches.items()
        }
        segments = tuple(payload_digest(held[key]) if key else b"" for key in commit.segments)
        encoded = contents(rows)
        held[PayloadKey(of.step, "list", 0, of.attempt, peer.peer)] = encoded
        named = replace(of, root=root_of(encoded), segments=segments)
        kind, statement = statement_of(named)
        if not self._swarm.states(peer, kind, statement):
            return
        signature = signer.sign(kind, encode_statement(statement), SWARM).signature
        signed = replace(named, signature=signature)
        self._swarm.perform(peer, seat.committed(commit, signed, self._swarm.now_of(peer)))

    def ready(self, peer: Volunteer, said: Ready) -> None:
        """An honest volunteer is Ready for an attempt: with nobody whom it has expelled."""
        plan = peer.seat.member.plan_followed if peer.seat is not None else None
        if peer.audits is None or plan is None:
            return
        if (plan.step, plan.attempt) == (said.step, said.attempt):
            with_it = [m.peer for m in plan.members if m.peer in peer.audits.verdicts]
            words = (
                f"A2: {short(peer.peer)} is Ready for step {plan.step} with whom it has expelled"
            )
            expect(not with_it, words)

    def contributes(self, peer: Volunteer, sent: Segment, parts: Parts) -> None:
        """A volunteer sends a segment: an honest one the segment of its commitment."""
        seat = peer.seat
        said = seat and seat.commitments.of(peer.peer, sent.step, sent.attempt)
        if said and not peer.lies:
            words = f"A3: {short(peer.peer)} contributes something else than it signed"
            expect(said.segments[sent.segment] == payload_digest(parts[0]), words)

    def _convicted(self, by: Volunteer, out: Verdict) -> None:
        self._swarm.note(by, f"expels {short(out.culprit)}: {out.words}")
        if by.lies:
            return
        by.contacts.expel(out.culprit)
        by.statuses.pop(out.culprit, None)
        self._swarm.network.close(by, out.culprit)
        convict = self._swarm.volunteers[out.culprit]
        expect(convict.lies, f"A1: {short(by.peer)} expels an honest member: {out.words}")
        if out.culprit not in self._told and by.seat is not None:
            self._told.add(out.culprit)
            self.lasted.append(max(0, by.seat.step - self._swarm.config.lies_from))


def _results(terms: AuditTerms) -> Counter[Grade | None]:
    return sum((record.results for record in terms.records.values()), Counter[Grade | None]())
