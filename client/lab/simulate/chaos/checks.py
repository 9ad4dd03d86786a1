"""The invariants of a run, checked at every commit, periodically, and at its end.

I1 and I4: the versions of a stage are the chain of exactly the ids of each step, which is computed
here without any machine; so a run with faults has the same result as one without. I5: one commit
per (stage, era, version): one attempt with one digest in all reports. I8: the memory of a seat is
bounded by the constants below. L1: an honest volunteer that has closed a step restarts only in a
lineage that a volunteer's machine has decided, or that its own would decide: from existing states.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass

from client.lab.simulate.chaos.volunteer import Volunteer
from client.lab.simulate.invariants import expect
from client.lab.simulate.multisets import INITIAL, encode_ids
from protocol.ids import PeerId, short
from protocol.pipeline.effects import Committed
from protocol.recovery.stored import Lineage
from protocol.rounds.shards import ENOUGH
from protocol.seat.early_messages import MAX_STEPS_AHEAD, most_of_sender
from protocol.seat.showing import KEPT_STEPS
from protocol.wire.statement import Statement

LONGEST = 10_000
"""Above the versions of any run of the world."""
STEPS_KEPT = 4
"""Steps of which a replica may hold microbatches: a neighbour's last, our own, the next one."""
PAYLOADS_PER_MICROBATCH = 5
ATTEMPTS_KEPT = 12
"""Attempts of rounds whose shards are kept until their step is dropped."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds of one seat's memory."""

    microbatches: int
    payloads: int
    reports: int
    early: int

    @classmethod
    def of(cls, per_step: int, members: int, *, audits: bool = False) -> Bounds:
        """Return the bounds for a stage with ``replicas`` replicas, counting all that ever were.
        For auditors payloads are kept longer."""
        steps = STEPS_KEPT + (KEPT_STEPS if audits else 0)
        microbatches = STEPS_KEPT * per_step
        payloads = steps * per_step * PAYLOADS_PER_MICROBATCH
        rounds = steps * ATTEMPTS_KEPT * 3 * members
        early = MAX_STEPS_AHEAD * members * most_of_sender(ENOUGH)
        return cls(microbatches, payloads + rounds, members, early)


class Checks:
    """Holds the known facts of every committed version; ``parting``: each lineage has its own."""

    def __init__(self, per_step: int, *, parting: bool = False) -> None:
        self._per_step = per_step
        self._made: dict[tuple[int, int, int], str] | None = {} if parting else None
        """By stage, era and version: the hash."""
        self._expected = [INITIAL]
        self.commits: dict[tuple[int, int, int], tuple[object, ...]] = {}
        """By stage, era and version: attempt, hash, and what else the decree says."""
        self.statements: dict[tuple[PeerId, str, int, int, int, int], bytes] = {}
        """By author and number: the digest."""
        self.decided = set[Lineage]()
        """Lineages that somebody's machine has begun, and not only the liar's words."""
        self.most = Counter[str]()
        """The most that any seat kept, by name of what."""

    def stated(self, volunteer: Volunteer, kind: str, said: Statement) -> None:
        """A volunteer has signed what it says of a round."""
        where = (volunteer.peer, kind, said.stage, said.era, said.step, said.attempt)
        known = self.statements.setdefault(where, said.digest)
        words = f"{short(volunteer.peer)} signs two {kind}s of step {said.step}"
        expect(known == said.digest, f"I9: {words}, attempt {said.attempt}")

    def expected(self, version: int) -> str:
        """Return the hash of a version that consists of each step's ids, once each, in order."""
        while len(self._expected) <= version:
            step = len(self._expected) - 1
            ids = Counter(range(step * self._per_step, (step + 1) * self._per_step))
            chained = self._expected[-1].encode() + encode_ids(ids)
            self._expected.append(hashlib.blake2b(chained, digest_size=32).hexdigest())
        return self._expected[version]

    def committed(self, volunteer: Volunteer, of: Committed) -> None:
        """A replica has made a version."""
        who, what = short(volunteer.peer), f"stage {of.stage} version {of.version}"
        self.loaded(volunteer, of.version, of.hash)
        made = (of.attempt, of.hash, of.roll, of.shares, of.electors)
        known = self.commits.setdefault((of.stage, of.era, of.version), made)
        words = f"attempt {made[0]} by {who} and attempt {known[0]}"
        expect(known == made, f"I5: two commits for {what}: {words}")

    def adopted(self, volunteer: Volunteer, lineage: Lineage, *, ours: bool, cut_off: bool) -> None:
        """A volunteer restarts in a lineage: by its own decision, or by that of another machine. A
        volunteer that has never closed a step has no trusted peers, and one that is cut off with
        the liar and at most one other cannot identify the liar (protocol/SPEC.md, section 20)."""
        if ours:
            expect(lineage not in self.decided, f"I5: two lineages with one era: {lineage}")
            self.decided.add(lineage)
        words = f"L1: {short(volunteer.peer)} follows a lineage that nobody has begun: {lineage}"
        newcomer = not volunteer.recovery.evidence.any  # it has no trusted peers
        true = lineage.version < LONGEST and set(lineage.hashes) <= {
            bytes.fromhex(self.expected(lineage.version))
        }
        excused = volunteer.lies or newcomer or cut_off
        expect(excused or true or lineage in self.decided, words)

    @staticmethod
    def begun(volunteer: Volunteer, lineage: Lineage) -> None:
        """A volunteer begins anew, in a run in which members part: beside nobody who is as far."""
        for peer, status in volunteer.statuses.items():
            serves = status.state == "serving" and peer != volunteer.peer
            beside = serves and status.version >= lineage.version
            words = f"{short(volunteer.peer)} begins anew at version {lineage.version} beside"
            expect(not beside, f"I5: {words} {short(peer)} at {status.version}")

    def loaded(self, volunteer: Volunteer, version: int, found: str) -> None:
        """A replica is at a version."""
        what = f"{short(volunteer.peer)} at stage {volunteer.stage} version {version}"
        expected = self.expected(version)
        if self._made is not None:
            era = volunteer.recovery.lineage.era
            expected = self._made.setdefault((volunteer.stage, era, version), found)
        expect(found == expected, f"I1, I4: not what the steps make: {what}")

    def bounded(self, volunteer: Volunteer, members: int) -> None:
        """Check a seat's bounds (I8)."""
        seat = volunteer.seat
        if seat is None:
            return
        bounds = Bounds.of(self._per_step, members, audits=volunteer.audits is not None)
        kept = {
            "microbatches": len(seat.pipeline._microbatches),
            "payloads": len(volunteer.payloads),
            "reports": len(seat.leader.reports),
            "early": sum(map(len, seat._early._kept.values())),
        }
        for name, count in kept.items():
            self.most[name] = max(self.most[name], count)
            most = getattr(bounds, name)
            words = f"I8: {short(volunteer.peer)} keeps {count} {name}, more than {most}"
            expect(count <= most, words)
