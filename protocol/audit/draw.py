"""The draw of the contributions to audit: each auditor draws for itself, when a step is closed.

By then the member has committed to its contribution. The draw is keyed with the auditor's secret,
so no other peer can foresee or steer it. A draw that all could compute from the digest alone could
be steered by the owner of the last sum: it could change a bit of that sum until the draw suits it.
Each of the other replicas of a stage draws with an equal share of the rate, so a contribution is
audited as often as the budget says, however many they are. Who is doubted is looked at by several
of them in every step.
"""

from collections.abc import Mapping, Sequence
from hashlib import blake2b

from protocol.audit.record import Record
from protocol.ids import PeerId

SECRET_BYTES = 32
UNPROVEN = 4
"""Audits in agreement before which a member counts as new."""
PROVEN = 16
"""And from which it is audited less."""
NEW_TIMES = 4.0
PROVEN_TIMES = 0.5
LOOKED_AT = 3.0
"""Audits of a member that is doubted in each step, by all others together."""


def rate(budget: float, record: Record) -> float:
    """Return how often a contribution of a member is audited, by all others together.

    Args:
        budget: share of all contributions that the run wants to be audited; 0: none ever is.
        record: what our audits of the member came to.
    """
    if budget > 0 and record.doubted:
        return LOOKED_AT
    if record.agreed < UNPROVEN:
        return min(1.0, NEW_TIMES * budget)
    return budget * (PROVEN_TIMES if record.agreed >= PROVEN else 1.0)


def drawn(
    secret: bytes,
    closed: bytes,
    stage: int,
    step: int,
    others: Mapping[PeerId, Record],
    budget: float,
) -> PeerId | None:
    """Return the member whose contribution to a closed step we audit; None: no member's.

    Of several that are drawn it is the one whose draw is least beside its rate.

    Args:
        secret: 32 bytes that only we know.
        closed: the digest that the step is closed with.
        others: the other members of its plan that have counted anything in it, or own a sum.
        budget: share of all contributions that the run wants to be audited.
    """
    shares = {peer: rate(budget, record) / len(others) for peer, record in others.items()}
    draws = {peer: uniform(secret, closed, stage, step, peer) for peer in others}
    hit = [peer for peer in others if draws[peer] < shares[peer]]
    return min(hit, key=lambda peer: draws[peer] / shares[peer], default=None)


def segment_drawn(
    secret: bytes, closed: bytes, stage: int, step: int, segments: Sequence[int]
) -> int | None:
    """Return the one of a drawn member's segments whose sum is made again; None: it owns none."""
    if not segments:
        return None
    which = uniform(secret, closed + b"segment", stage, step, "")
    return segments[int(which * len(segments))]


def uniform(secret: bytes, closed: bytes, stage: int, step: int, what: str) -> float:
    """Return a number from 0 to 1 that cannot be foreseen without the secret."""
    text = closed + f"|{stage}|{step}|{what}".encode()
    return int.from_bytes(blake2b(text, digest_size=8, key=secret).digest(), "big") / 2**64
