"""What audits of a volunteer go by in all its seats, and what they came to: it outlives them. No
rules of its own."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from protocol.audit.charges import Charges
from protocol.audit.record import Record
from protocol.ids import PeerId, SwarmId
from protocol.verdicts import Verdicts
from protocol.wire.fields import Envelope

Sign = Callable[[str, bytes], Envelope]
"""Signs a body of a kind with our key."""
MAX_RECORDS: Final = 1024
"""Members whose audits are remembered; the one that was looked up longest ago is forgotten."""


@dataclass(slots=True)
class AuditTerms:
    """See the module's docstring.

    Fields:
        budget: share of all contributions that the run wants to be audited; 0: there are no audits.
        secret: 32 bytes that only we know.
        sign: signs what we charge members with.
        coarse: whether the averaging codec loses anything.
        charges: who charges whom.
        records: what our audits came to, by stage and member.
        contributions: of others, in steps that we have closed: each could have been audited.
        verdicts: who is out, which all of this process share.
        mixed: whether passes compute in few bits.
    """

    budget: float = 0.0
    secret: bytes = b""
    sign: Sign = lambda kind, body: Envelope(PeerId(""), kind, body, b"")
    coarse: bool = False
    charges: Charges = field(default_factory=lambda: Charges(SwarmId("")))
    records: dict[tuple[int, PeerId], Record] = field(default_factory=dict)
    contributions: int = 0
    verdicts: Verdicts = field(default_factory=Verdicts)
    mixed: bool = False

    def record(self, stage: int, peer: PeerId) -> Record:
        """Return the record of a member of a stage."""
        known = self.records.pop((stage, peer), None) or Record()
        if len(self.records) >= MAX_RECORDS:
            del self.records[next(iter(self.records))]
        self.records[stage, peer] = known
        return known

    def open_charges(self) -> dict[tuple[int, PeerId], list[PeerId]]:
        """Return who charges whom, where that has expelled nobody; not the charges of those who
        are expelled themselves."""
        found: dict[tuple[int, PeerId], list[PeerId]] = {}
        for kept in self.charges.all(-math.inf):
            member, author = PeerId(kept.charge.member), PeerId(kept.envelope.signer)
            if member not in self.verdicts and author not in self.verdicts:
                found.setdefault((kept.charge.stage, member), []).append(author)
        return found
