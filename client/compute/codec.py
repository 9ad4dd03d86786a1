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

from client.compute import conditioning
from client.compute.codecs import blocks
from client.compute.codecs.blocks import LARGEST_SCALE, LARGEST_VALUE, Blocks
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
    """Return the payload of a tensor. On a GPU nothing is waited for, and its memory must be kept
    until its bytes are there.

    Args:
        tensor: fp32.
        codec, direction: how it is encoded.
        key: by which S4 rounds gradients: of `rounding_key`.

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
    chance = key if codec == "s4" and direction == "backward" else None
    chunk = blocks.chunk_of(tensor.device)
    for place, piece, peak in CODERS[codec].encode(rows, chunk, encoding.rotated, means, chance):
        lane.to_host(piece, body[place])  # while the next one is computed
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
        out: contiguous tensor to decode into; None: a new one.
        device: of a new one.

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
    body, means, sane = sent, None, None
    if encoding.centred:
        ahead, body = sent.tensor_split([encoding.body_start - SEAL_BYTES])
        means = ahead.view(torch.bfloat16).float()
        sane = means.abs().amax() <= LARGEST  # false for NaN as well
        means = means[: rows.shape[1]]
    chunk = blocks.chunk_of(result.device)
    good = CODERS[codec].decode(body, rows, chunk, encoding.rotated, means)
    good = good if sane is None else good & sane

    def judge(found: Sequence[float]) -> None:
        if not found[0]:
            raise CodecError(f"payload in {codec} holds NaN, infinity or what is never sent")

    return result, Check(good.float().view(1), judge)


class Plain:
    """Numbers in a type of torch."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype

    def encode(
        self, rows: Tensor, chunk: int, *_: object
    ) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Convert rows (R, C); yields as those of `Blocks` do."""
        at = 0
        for piece in torch.split(rows.view(-1), chunk):
            end = at + len(piece) * self._dtype.itemsize
            peak = piece.abs().amax() / LARGEST_VALUE
            yield slice(at, end), piece.to(self._dtype).view(torch.uint8), peak
            at = end

    def decode(self, body: Tensor, rows: Tensor, chunk: int, *_: object) -> Tensor:
        """Read a body into rows (R, C); returns whether it is good, as a number on the device."""
        flat = rows.view(-1).copy_(body.view(self._dtype))
        peaks = [piece.abs().amax() for piece in torch.split(flat, chunk)]
        return torch.stack(peaks).amax() <= LARGEST  # false for NaN as well


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
