"""Sizes: the largest legal messages fit their header."""

import pytest
from msgspec.structs import replace

from model_zoo.specs.state_hash import DIGEST_BYTES
from protocol import limits
from protocol.transfer.blob import Blob
from protocol.wire.messages import (
    Commit,
    Commitment,
    Plan,
    Propose,
    RoundMessage,
    decode_message,
    encode_message,
)
from protocol.wire.parts import Decree, PlanMember, Promise
from tests.support.protocol_examples import peer

EVERYBODY = [peer(n) for n in range(limits.MAX_REPLICAS_IN_ROUND)]
ELECTORS = EVERYBODY[: limits.MAX_ELECTORS]


WHERE = limits.MAX_STAGES - 1, limits.MAX_STEP, 2**31 - 1
FULL = b"\xff" * (limits.MAX_MICROBATCHES_PER_STEP // 8)
PROMISES = tuple(Promise(one, 2**31 - 1, bytes(32), bytes(64)) for one in ELECTORS)
READY = (bytes(64),) * len(EVERYBODY)
DECREE = Decree(2**31 - 1, bytes(32), tuple(EVERYBODY), tuple(ELECTORS), 1e30, READY)


@pytest.mark.parametrize(
    "largest",
    [
        Plan(
            *WHERE,
            members=[PlanMember(peer=one, counted=FULL) for one in EVERYBODY],
            bounds=[2**47] * (limits.MAX_SEGMENTS + 1),
            observers=EVERYBODY,
            electors=ELECTORS,
            promises=PROMISES,
            signature=bytes(64),
        ),
        Commit(*WHERE, EVERYBODY[0], DECREE, tuple((one, bytes(64)) for one in ELECTORS)),
        Propose(*WHERE, DECREE, PROMISES),
        Commitment(*WHERE, bytes(32), (b"\xff" * 32,) * limits.MAX_SEGMENTS, bytes(64)),
    ],
    ids=lambda message: type(message).__name__,
)
def test_the_largest_fits_a_header(largest: RoundMessage) -> None:
    header = encode_message(replace(largest, era=2**31 - 1))
    assert len(header) <= limits.MAX_HEADER_BYTES
    assert decode_message(header) == replace(largest, era=2**31 - 1)


def test_the_list_of_the_largest_blobs_digests_is_one_chunk() -> None:
    assert Blob(bytes(32), limits.MAX_BLOB_BYTES).count * DIGEST_BYTES <= limits.CHUNK_BYTES
