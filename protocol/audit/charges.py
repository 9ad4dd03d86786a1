"""Charges: what the members of a stage sign against one of them, and the majority that expels it.

A member that has found out another one by an audit signs a charge against it. One charge is one
word. A member is expelled if more than half of its stage, itself included, have charged it. So the
liars of a stage expel nobody while they are the minority. Of two replicas none can expel the other.
State: the newest charge of each author against each member, for an hour.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final, Literal

from msgspec import Struct

from protocol.errors import RemoteProtocolError
from protocol.ids import PeerId, SwarmId, short
from protocol.limits import MAX_REPLICAS_IN_ROUND
from protocol.pace import LONG_S
from protocol.token_bucket import Rate, TokenBuckets
from protocol.verdicts import Verdict
from protocol.wire.canonical import Canonical
from protocol.wire.envelope import verify
from protocol.wire.fields import Attempt, Envelope, PeerText, StageIndex, StepIndex
from protocol.wire.parts import VotedOut

KIND: Final = "audit-charge"
MAX_OF_AUTHOR: Final = 64
"""Of more the oldest is forgotten: who charges invented members displaces nobody else's charges."""
MAX_CHARGES: Final = MAX_OF_AUTHOR * MAX_REPLICAS_IN_ROUND
VERIFIED: Final = Rate(1.0, 16)
"""Charges of an author that are verified: half of a full stage may be found out in one step."""

Reason = Literal["lies", "other", "sums", "fails"]
WORDS: Final[dict[Reason, str]] = {
    "lies": "contributed what it should not have computed",
    "other": "contributed something else than it had signed",
    "sums": "broadcast a sum that is not the sum of what was contributed",
    "fails": "did not stand too many audits",
}


class Charge(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The signed body: the contribution that was audited, and what is held against the member."""

    stage: StageIndex
    member: PeerText
    step: StepIndex
    attempt: Attempt
    reason: Reason


CHARGE: Final = Canonical(Charge, "charge")


def verdict_of(out: VotedOut) -> Verdict:
    """Return the verdict that charges come to; they are verified."""
    words = words_of([CHARGE.parse(one.body) for one in out.charges])
    return Verdict(PeerId(out.member), words, out)


def check(out: VotedOut, swarm: SwarmId) -> Verdict:
    """Verify the charges of a member that was voted out; return the verdict.

    Whether their authors were a majority, only those can say who saw the stage then.

    Raises:
        RemoteProtocolError: a charge is about something else, not signed by its author, of the
            member itself, or the second one of its author.
    """
    charges = [CHARGE.parse(one.body) for one in out.charges]
    if len({out.member, *(one.signer for one in out.charges)}) <= len(charges):
        raise RemoteProtocolError("charges-of-one-author", out.member, 50)
    for charge, envelope in zip(charges, out.charges, strict=True):
        if envelope.kind != KIND or (charge.stage, charge.member) != (out.stage, out.member):
            raise RemoteProtocolError("charge-of-another", out.member, 50)
        verify(envelope, swarm)
    return verdict_of(out)


JudgesOf = Callable[[Charge], Collection[PeerId]]


@dataclass(frozen=True, slots=True)
class Kept:
    """A charge that was verified, and when it came (monotonic seconds)."""

    charge: Charge
    envelope: Envelope
    at: float


class Charges:
    """See the module's docstring; ``swarm`` is where the signatures hold."""

    def __init__(self, swarm: SwarmId) -> None:
        self.swarm = swarm
        self._kept: dict[tuple[int, PeerId, PeerId], Kept] = {}
        """By stage, member and author, the oldest first."""
        self._verified = TokenBuckets[PeerId](MAX_CHARGES)
        """By author."""

    def take(self, envelope: Envelope, now: float) -> Charge | None:
        """Keep a charge; None: it is known already, or comes too soon after the one before.

        Raises:
            RemoteProtocolError: it is malformed, or not signed by its author.
        """
        charge, author = CHARGE.parse(envelope.body), PeerId(envelope.signer)
        known = self._kept.get((charge.stage, PeerId(charge.member), author))
        if author == charge.member or (known is not None and known.envelope == envelope):
            return None
        if envelope.kind != KIND or not self._verified.has(author, VERIFIED, now):
            return None
        verify(envelope, self.swarm)
        self._put(charge, envelope, now)
        self._verified.take({author: VERIFIED}, now)
        return charge

    def of(self, stage: int, member: PeerId, author: PeerId) -> Charge | None:
        """Return the charge of an author against a member."""
        kept = self._kept.get((stage, member, author))
        return None if kept is None else kept.charge

    def found_out_by(self, author: PeerId) -> set[PeerId]:
        """Return whom an author has found out without a doubt."""
        return {
            member
            for (_, member, who), one in self._kept.items()
            if who == author and one.charge.reason != "fails"
        }

    def all(self, now: float) -> list[Kept]:
        """Return every charge that counts: liars must not save up the accidents of years."""
        return [one for one in self._kept.values() if now < one.at + LONG_S]

    def verdicts(self, judges_of: JudgesOf, now: float) -> list[Verdict]:
        """Return the verdicts on the members that majorities charge, by stage and member.

        Args:
            judges_of: returns the members of the stage at the step of a charge; a charge of another
                peer does not count. Of several steps the largest stage counts.
        """
        found = dict[tuple[int, PeerId], list[tuple[int, Envelope]]]()
        for one in sorted(self.all(now), key=lambda one: one.envelope.signer):
            stage, member = one.charge.stage, PeerId(one.charge.member)
            members = {*judges_of(one.charge), member}
            if one.envelope.signer in members:
                found.setdefault((stage, member), []).append((len(members), one.envelope))
        return [
            verdict_of(VotedOut(stage, member, tuple(envelope for _, envelope in counting)))
            for (stage, member), counting in sorted(found.items())
            if 2 * len(counting) > max(count for count, _ in counting)
        ]

    def _put(self, charge: Charge, envelope: Envelope, now: float) -> None:
        author = PeerId(envelope.signer)
        key = charge.stage, PeerId(charge.member), author
        self._kept.pop(key, None)
        own = [known for known in self._kept if known[-1] == author]
        if len(own) >= MAX_OF_AUTHOR:
            del self._kept[own[0]]
        elif len(self._kept) >= MAX_CHARGES:
            del self._kept[next(iter(self._kept))]
        self._kept[key] = Kept(charge, envelope, now)


def words_of(charges: Collection[Charge]) -> str:
    """Say why a member is expelled: ``Qx3f7A contributed something else … (found by 2 …)``."""
    first = next(iter(charges))
    reasons = sorted({WORDS[charge.reason] for charge in charges})
    steps = sorted({charge.step for charge in charges})
    where = f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"
    who = f"{len(charges)} members"
    return (
        f"{short(PeerId(first.member))} {' and '.join(reasons)} "
        f"({where} of stage {first.stage}; found by {who})"
    )
