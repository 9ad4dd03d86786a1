"""S8 in torch makes the same bytes and numbers in pieces as at once."""

from __future__ import annotations

import pytest
import torch

from client.compute import codec, lane, native
from client.compute.codec import decode, encode
from client.compute.codecs import s8
from client.compute.payload import BLOCK_BYTES, Direction, read_header
from model_zoo.specs.codec import Codec

TILE = 512 * 128
SHAPES = [(5,), (65_537,), (140_001,), (600, 129), (33, 5, 100), (1, 70_001), (17, 1000)]


def kinds(shape: tuple[int, ...]) -> list[torch.Tensor]:
    plain = torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))
    outlier, spiky = plain.clone(), plain.clone()
    outlier[..., shape[-1] // 3] *= 60
    spiky.view(-1)[:: max(1, plain.numel() // 5)] *= 1000
    return [plain, outlier, spiky]


def coded(tensor: torch.Tensor, name: Codec, direction: Direction) -> tuple[bytes, bytes]:
    """The payload and the numbers that are read from it."""
    payload = bytes(encode(tensor, name, direction=direction))
    return payload, decode(payload, tensor.shape).numpy().tobytes()


@pytest.mark.parametrize("name", ["s8", "bf16", "fp32"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_size_of_pieces_does_not_show(
    shape: tuple[int, ...], name: Codec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "VARIANTS", [])
    directions: list[Direction] = ["forward", "backward", "average"]
    found = []
    for chunk in (TILE, 1 << 25):
        monkeypatch.setattr(s8, "chunk_of", lambda device: chunk)  # noqa: B023
        found.append([coded(each, name, to) for each in kinds(shape) for to in directions])
    assert found[0] == found[1]


def test_the_conditioned_modes_are_among_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "VARIANTS", [])
    _, outlier, _ = kinds((600, 129))
    for direction, flag in (("forward", "prescaled"), ("backward", "rotated")):
        payload = encode(outlier, "s8", direction=direction)  # type: ignore[arg-type]
        assert getattr(read_header(payload, outlier.shape), flag)


def test_pieces_begin_with_tiles_and_cover_the_body() -> None:
    for shape in ((1, 140_001), (600, 129), (1025, 128), (17, 1000)):
        pieces = list(s8.encode(torch.randn(shape), None, rotated=False, chunk=TILE))
        places = [place for place, _, _ in pieces]
        assert [place.start for place in places[1:]] == [place.stop for place in places[:-1]]
        assert places[-1].stop == shape[0] * -(-shape[1] // 128) * BLOCK_BYTES
        assert all(place.start % (512 * BLOCK_BYTES) == 0 for place in places)
        assert len(pieces) > 1 or shape == (17, 1000)
        assert all(float(scale) <= s8.LARGEST_SCALE for _, _, scale in pieces)


def test_a_lane_of_the_processor_copies() -> None:
    way = lane.lane_to(torch.device("cpu"))
    data = torch.arange(100, dtype=torch.uint8)
    target = way.host_bytes(100)
    way.to_host(way.to_device(data), target)
    way.wait()
    assert torch.equal(target, data)
    assert codec.lane_to(torch.device("cpu")) is way
