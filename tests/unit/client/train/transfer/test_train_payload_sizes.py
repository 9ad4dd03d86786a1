"""The manifest determines the largest payload of a run."""

import itertools

import msgspec
import pytest
from msgspec.structs import replace

from client.compute.payload import Encoding
from client.config import GIB
from client.train.transfer.state_size import (
    largest_payload,
    round_bytes,
    transit_disk_bytes,
    usual_payload,
)
from model_zoo.specs.slices import stage_parameters
from protocol.audit.commitment import contents
from protocol.limits import CHUNK_BYTES, MAX_MICROBATCHES_PER_STEP, MAX_PAYLOAD_BYTES, MAX_SEGMENTS
from protocol.manifest import Manifest
from protocol.rounds.shards import segmented, shard_bounds
from tests.support.saved_swarms import founded


def manifest(width: int, sequences: int) -> Manifest:
    shape = {"layers": 4, "width": width, "heads": 2, "context": 64}
    return founded(stages=2, sequences=sequences, redundancy=2, **shape).manifest


@pytest.mark.parametrize(("width", "sequences"), [(32, 1), (32, 64), (512, 2)])
def test_everything_honest_fits(width: int, sequences: int) -> None:
    ours = manifest(width, sequences)
    shape = ours.sequences_per_microbatch, ours.model.context, ours.model.width
    tokens = 2 * 8 * ours.sequences_per_microbatch * (ours.model.context + 1)
    for codec in ("s8", "bf16", "fp32"):
        assert Encoding(codec, "forward", shape).size_bytes + tokens <= usual_payload(ours)
    for stage in range(2):
        size = stage_parameters(ours.model, ours.layers_per_stage, stage)
        assert Encoding("fp32", "forward", (size,)).size_bytes <= largest_payload(ours)
        for owns in ([True] * 2, [True] * 5, [False, True]):
            bounds = segmented(shard_bounds(size, owns))
            most = max(b - a for a, b in itertools.pairwise(bounds))
            assert Encoding("fp32", "forward", (most,)).size_bytes <= usual_payload(ours)
    assert usual_payload(ours) <= largest_payload(ours)
    assert largest_payload(ours) >= CHUNK_BYTES


def test_half_of_what_is_in_transit_holds_a_round_of_the_largest_stage() -> None:
    small = manifest(32, 1)
    stages = [replace(stage, layers=16) for stage in small.stages]
    wide = replace(small.model, width=4096, ffn_width=16384, layers=32)
    large = replace(small, model=wide, stages=stages, averaging_codec="fp32")
    assert round_bytes(large) > 3 * GIB
    assert transit_disk_bytes(large) >= 2 * round_bytes(large)
    assert transit_disk_bytes(small) == 4 * GIB


def test_a_small_run_takes_no_large_frames() -> None:
    assert largest_payload(manifest(32, 1)) < MAX_PAYLOAD_BYTES // 16
    assert MAX_SEGMENTS > 1


def test_the_list_of_an_audit_fits_of_a_step_of_many_microbatches() -> None:
    count = MAX_MICROBATCHES_PER_STEP
    digests = {2**40 + m: (b"d" * 32,) * 5 for m in range(count)}
    shown = contents(digests)
    ours = msgspec.structs.replace(manifest(32, 1), microbatches_per_step=count)
    assert len(shown) > largest_payload(ours)  # no audits, no list
    assert len(shown) <= largest_payload(msgspec.structs.replace(ours, audit_percent=3))
