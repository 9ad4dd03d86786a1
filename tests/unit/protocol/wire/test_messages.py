"""Sizes: the largest legal messages fit their header."""

from model_zoo.specs.state_hash import DIGEST_BYTES
from protocol import limits
from protocol.transfer.blob import Blob
from protocol.wire.messages import Commit, Commitment, Plan, Propose, decode_message, encode_message
from protocol.wire.parts import Decree, PlanMember, Promise
from tests.support.protocol_examples import peer

EVERYBODY = [peer(n) for n in range(limits.MAX_REPLICAS_IN_ROUND)]
ELECTORS = EVERYBODY[: limits.MAX_ELECTORS]


def test_the_largest_plan_fits_a_header() -> None:
    full = b"\xff" * (limits.MAX_MICROBATCHES_PER_STEP // 8)
    members = [PlanMember(peer=peer(n), counted=full) for n in range(limits.MAX_REPLICAS_IN_ROUND)]
    plan = Plan(
        stage=limits.MAX_STAGES - 1,
        step=limits.MAX_STEP,
        attempt=2**31 - 1,
        members=members,
        bounds=[2**47] * (limits.MAX_SEGMENTS + 1),
        observers=EVERYBODY,
        electors=ELECTORS,
        promises=tuple(Promise(one, 2**31 - 1, bytes(32), bytes(64)) for one in ELECTORS),
        signature=bytes(64),
    )
    header = encode_message(plan)
    assert len(header) <= limits.MAX_HEADER_BYTES
    assert decode_message(header) == plan


def test_the_largest_decree_fits_a_header_with_its_votes_or_promises() -> None:
    everybody = tuple(EVERYBODY)
    ready = (bytes(64),) * len(everybody)
    decree = Decree(2**31 - 1, bytes(32), everybody, tuple(ELECTORS), 1e30, ready)
    where = limits.MAX_STAGES - 1, limits.MAX_STEP, 2**31 - 1
    votes = tuple((one, bytes(64)) for one in ELECTORS)
    promises = tuple(Promise(one, 2**31 - 1, bytes(32), bytes(64)) for one in ELECTORS)
    for made in (
        Commit(*where, everybody[0], decree, votes, era=2**31 - 1),
        Propose(*where, decree, promises, era=2**31 - 1),
    ):
        header = encode_message(made)
        assert len(header) <= limits.MAX_HEADER_BYTES
        assert decode_message(header) == made


def test_the_largest_commitment_fits_a_header() -> None:
    digests = (b"\xff" * 32,) * limits.MAX_SEGMENTS
    attempt, era = 2**31 - 1, 2**31 - 1
    made = Commitment(255, limits.MAX_STEP, attempt, bytes(32), digests, bytes(64), era=era)
    header = encode_message(made)
    assert len(header) <= limits.MAX_HEADER_BYTES
    assert decode_message(header) == made


def test_the_list_of_the_largest_blobs_digests_is_one_chunk() -> None:
    assert Blob(bytes(32), limits.MAX_BLOB_BYTES).count * DIGEST_BYTES <= limits.CHUNK_BYTES
