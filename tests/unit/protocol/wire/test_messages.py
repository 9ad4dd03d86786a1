"""Sizes: the largest legal messages fit their header."""

from __future__ import annotations

from protocol import limits
from protocol.wire.messages import BlobOffer, Plan, decode_message, encode_message
from protocol.wire.parts import PlanMember
from tests.support.protocol_examples import peer


def test_the_largest_plan_fits_a_header() -> None:
    full = b"\xff" * (limits.MAX_MICROBATCHES_PER_STEP // 8)
    members = [PlanMember(peer=peer(n), counted=full) for n in range(limits.MAX_REPLICAS_IN_ROUND)]
    plan = Plan(
        stage=limits.MAX_STAGES - 1,
        step=limits.MAX_STEP,
        attempt=2**31 - 1,
        members=members,
        bounds=[2**47] * (limits.MAX_REPLICAS_IN_ROUND + 1),
        observers=[peer(n) for n in range(limits.MAX_REPLICAS_IN_ROUND)],
    )
    header = encode_message(plan)
    assert len(header) <= limits.MAX_HEADER_BYTES
    assert decode_message(header) == plan


def test_the_largest_offer_fits_a_header() -> None:
    offer = BlobOffer(
        kind="state",
        stage=255,
        version=limits.MAX_STEP,
        size_bytes=2**47,
        digests=[b"\xff" * 32] * limits.MAX_CHUNKS,
    )
    assert len(encode_message(offer)) <= limits.MAX_HEADER_BYTES
