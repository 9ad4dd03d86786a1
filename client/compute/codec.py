"""Tensors to wire payloads and back, in the codecs of `model_zoo.specs.codec`.

`begin_encoding` refuses tensors that are not finite, `begin_decoding` everything but the expected
tensor.
Numbers are coded by torch where they are, and only bytes are copied. Vectors have the same bytes
everywhere; boundaries on all processors, while a GPU may condition them with other last bits. Holds
no state.

Shapes: any; R rows (all but the last), C channels (the last).
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor
from torch.nn.functional import pad

from client.compute import conditioning
from client.compute.codecs import blocks
from client.compute.codecs.blocks import LARGEST_SCALE, LARGEST_VALUE, Blocks, Coded
from client.compute.codecs.levels import EIGHT, SIXTEEN, Gaussian, Levels, TwoMeans
from client.compute.errors import CodecError, PoisonedTensor
from client.compute.lane import lane_to
from client.compute.payload import SEAL_BYTES, Buffer, Direction, Encoding, seal
from client.compute.readings import Check
from model_zoo.specs.codec import CODECS, Codec

LARGEST: Final = LARGEST_VALUE * LARGEST_SCALE
"""Magnitude of a number."""
_HOST = torch.device("cpu")
POISON = "tensor holds NaN, infinity or an absurd magnitude"


@dataclass(frozen=True, slots=True)
class Boundary:
    """A payload that is on its way from a device, and not sealed yet."""

    payload: memoryview
    wait: Callable[[], None]

    def ready(self) -> memoryview:
        """Return the payload, sealed, once its bytes are there; in any thread."""
        self.wait()
        seal(self.payload)
        return self.payload


def begin_encoding(
    tensor: Tensor, codec: Codec, direction: Direction, key: bytes = bytes(8)
) -> Check[Boundary]:
    """Return the payload of a tensor, fp32. On a GPU nothing is waited for, and its memory must be
    kept until its bytes are there. By the ``key``, of `rounding_key`, S4 rounds gradients.

    Raises:
        PoisonedTensor: the tensor holds NaN, infinity or an absurd magnitude; when it is judged, or
            here.
        ValueError: it is empty, not fp32, or has more than one dimension where the codec is for
            vectors.
    """
    fits = tensor.dim() == 1 or not CODECS[codec].vectors
    if tensor.dtype != torch.float32 or tensor.numel() == 0 or not fits:
        raise ValueError(f"cannot encode {tuple(tensor.shape)} of {tensor.dtype} in {codec}")
    numbers = tensor.detach().contiguous()
    encoding = Encoding(codec, direction, tuple(tensor.shape))
    lane, rows = lane_to(tensor.device), numbers.view(-1, numbers.shape[-1])
    memory = lane.host_bytes(encoding.size_bytes)
    payload, body = memory.numpy().data, memory[encoding.body_start :]
    payload[:SEAL_BYTES] = bytes(SEAL_BYTES)
    peaks, means = list[Tensor](), None
    if encoding.centred:
        sent = conditioning.channel_means(rows)
        lane.to_host(sent.view(torch.uint8), memory[SEAL_BYTES : encoding.body_start])
        means = sent[: rows.shape[1]].float()
        peaks.append(means.abs().amax() / LARGEST_VALUE)
    by_chance = codec == "s4" and direction == "backward"
    for place, part in _pieces(rows, encoding):
        groups, lacking = _blocks_of(part if means is None else part - means, encoding)
        first = place.start // CODECS[codec].block_bytes
        chances = blocks.chances_of(first, len(groups), key, rows.device) if by_chance else None
        piece, peak = CODERS[codec].encode(groups, lacking, chances)
        lane.to_host(piece.view(-1), body[place])  # while the next one is computed
        peaks.append(peak)
    largest = peaks[0] if len(peaks) == 1 else torch.stack(peaks).amax()

    boundary = Boundary(payload, lane.mark())

    def judge(found: Sequence[float]) -> Boundary:
        if not found[0] <= LARGEST_SCALE:
            boundary.wait()  # the payload is written to until then
            raise PoisonedTensor(POISON)
        return boundary

    return Check(largest.view(1), judge)


def begin_decoding(
    buffer: Buffer,
    shape: Sequence[int],
    codec: Codec,
    direction: Direction,
    *,
    out: Tensor | None = None,
    device: torch.device = _HOST,
) -> tuple[Tensor, Check[None]]:
    """Return the fp32 tensor in a payload from outside, which counts only if it is good.

    Args:
        buffer: the payload, not yet checked.
        shape, codec, direction: what it has to hold; nothing is allocated for another size.
        out: contiguous tensor to decode into; None: a new one on the ``device``.

    Raises:
        CodecError: the payload is invalid or has another size, here or when it is judged; `out` may
            hold part of it.
    """
    encoding = Encoding(codec, direction, tuple(shape))
    if len(buffer) != encoding.size_bytes:
        words = f"in {codec}, {encoding.shape} needs {encoding.size_bytes}"
        raise CodecError(f"payload has {len(buffer)} bytes; {words}")
    result = torch.empty(encoding.shape, device=device) if out is None else out
    rows, lane = result.view(-1, encoding.shape[-1]), lane_to(result.device)
    sent = lane.to_device(_view(memoryview(buffer)[SEAL_BYTES:], torch.uint8))
    body, means = sent, None
    good = torch.ones((), dtype=torch.bool, device=result.device)
    if encoding.centred:
        ahead, body = sent.tensor_split([encoding.body_start - SEAL_BYTES])
        means = ahead.view(torch.bfloat16).float()
        good = means.abs().amax() <= LARGEST  # false for NaN as well
        means = means[: rows.shape[1]]
    for place, part in _pieces(rows, encoding):
        numbers, fine = CODERS[codec].decode(body[place].view(-1, CODECS[codec].block_bytes))
        good &= fine
        numbers = conditioning.rotate(numbers) if encoding.rotated else numbers
        found = numbers.view(len(part), -1)[:, : part.shape[1]]
        if means is None:
            part.copy_(found)
        else:
            torch.add(found, means, out=part)

    def judge(found: Sequence[float]) -> None:
        if not found[0]:
            raise CodecError(f"payload in {codec} holds NaN, infinity or what is never sent")

    return result, Check(good.float().view(1), judge)


def _pieces(rows: Tensor, encoding: Encoding) -> Iterator[tuple[slice, Tensor]]:
    """Cut rows (R, C) into some whole rows each, or a single row into whole blocks; yield where
    their bytes are in the body, and the rows."""
    spec, chunk, at = CODECS[encoding.codec], blocks.chunk_of(rows.device), 0
    if encoding.centred or len(rows) > 1:
        per_row = -(-rows.shape[1] // spec.block) * spec.block
        parts = torch.split(rows, max(1, chunk // per_row))
    else:
        parts = torch.split(rows, max(1, chunk // spec.block) * spec.block, dim=1)
    for part in parts:
        end = at + spec.body_bytes(part.shape)
        yield slice(at, end), part
        at = end


def _blocks_of(rows: Tensor, encoding: Encoding) -> tuple[Tensor, int]:
    """Return rows (R, C), each padded to whole blocks and rotated as they are sent, (N, block); and
    how many zeros each row has got."""
    size = CODECS[encoding.codec].block
    lacking = -rows.shape[1] % size
    groups = (pad(rows, (0, lacking)) if lacking else rows).reshape(-1, size)
    return conditioning.rotate(groups) if encoding.rotated else groups, lacking


class Plain:
    """Numbers in a type of torch, each by itself."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype

    def encode(self, blocks: Tensor, _lacking: int, _chances: Tensor | None) -> Coded:
        """See `Blocks`."""
        return blocks.to(self._dtype).view(torch.uint8), blocks.abs().amax() / LARGEST_VALUE

    def decode(self, coded: Tensor) -> Coded:
        """See `Blocks`."""
        numbers = coded.view(self._dtype)
        return numbers, numbers.abs().amax() <= LARGEST  # false for NaN as well


CODERS: Final[dict[Codec, Blocks | Levels | Plain]] = {
    "s8": Blocks(8),
    "s4": Blocks(4),
    "q2": TwoMeans("q2", 2, scales=2),
    "q3": Gaussian("q3", 3, EIGHT),
    "q4": Gaussian("q4", 4, SIXTEEN),
    "bf16": Plain(torch.bfloat16),
    "fp32": Plain(torch.float32),
}


def _view(buffer: memoryview, dtype: torch.dtype) -> Tensor:
    """The buffer as a tensor, without a copy; a read-only one is only ever read here."""
    if not buffer.readonly:
        return torch.frombuffer(buffer, dtype=dtype)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
        return torch.frombuffer(buffer, dtype=dtype)
