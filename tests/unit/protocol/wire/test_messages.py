"""Sizes: the largest legal messages fit their header."""

from __future__ import annotations

from protocol import limits
from protocol.transfer.blob import DIGEST_BYTES, chunk_count
from protocol.wire.messages import Commitment, Plan, decode_message, encode_message
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
        bounds=[2**47] * (limits.MAX_SEGMENTS + 1),
        observers=[peer(n) for n in range(limits.MAX_REPLICAS_IN_ROUND)],
    )
    header = encode_message(plan)
    assert len(header) <= limits.MAX_HEADER_BYTES
    assert decode_message(header) == plan


def test_the_largest_commitment_fits_a_header() -> None:
    digests = (b"\xff" * 32,) * limits.MAX_SEGMENTS
    attempt, era = 2**31 - 1, 2**31 - 1
    made = Commitment(255, limits.MAX_STEP, attempt, bytes(32), digests, bytes(64), era=era)
    header = encode_message(made)
    assert len(header) <= limits.MAX_HEADER_BYTES
    assert decode_message(header) == made


def test_the_list_of_the_largest_blobs_digests_is_one_chunk() -> None:
    assert chunk_count(limits.MAX_BLOB_BYTES) * DIGEST_BYTES <= limits.CHUNK_BYTES
