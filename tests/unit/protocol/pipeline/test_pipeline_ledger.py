"""Ledgers on the wire: bitmaps of one step, and nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import RemoteProtocolError
from protocol.limits import MAX_MICROBATCHES_PER_STEP, MAX_STEP
from protocol.pipeline.ledger import from_bitmap
from tests.support.ledgers import to_bitmap

STEPS = st.integers(0, MAX_STEP)
PER_STEP = st.integers(1, 300)


@given(st.binary(max_size=MAX_MICROBATCHES_PER_STEP // 8), STEPS, PER_STEP)
def test_any_bytes_are_ids_of_the_step_or_refused(bitmap: bytes, step: int, per_step: int) -> None:
    try:
        ids = from_bitmap(bitmap, step, per_step)
    except RemoteProtocolError:
        assert int.from_bytes(bitmap, "little") >= 1 << per_step
    else:
        assert {m // per_step for m in ids} <= {step}
        again = to_bitmap(ids, step, per_step)
        assert again.rstrip(b"\0") == bitmap.rstrip(b"\0")
        assert len(again) == -(-per_step // 8)


@pytest.mark.parametrize(
    ("bitmap", "ids"),
    [(b"", set()), (b"\x01", {30}), (b"\x00\x02", {39}), (b"\x03\x00\x00\x00", {30, 31})],
)
def test_bits_by_hand(bitmap: bytes, ids: set[int]) -> None:
    assert from_bitmap(bitmap, 3, 10) == ids


@pytest.mark.parametrize("bitmap", [b"\x00\x04", b"\xff\xff", b"\x00" * 40 + b"\x01"])
def test_bits_beyond_the_step(bitmap: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="ledger-out-of-range"):
        from_bitmap(bitmap, 3, 10)
