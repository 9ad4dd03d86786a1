"""Tensors to wire payloads and back, in the codecs of `model_zoo.specs.codec`.

`encode` refuses tensors that are not finite, `decode` refuses everything but the expected tensor.
Numbers are coded by torch where they are, and only bytes are copied. Vectors have the same bytes
everywhere; boundaries on all processors, while a GPU may condition them with other last bits. Holds
no state.

Shapes: any; R rows (all but the last), C channels (the last).
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from client.compute import conditioning
from client.compute.codecs import blocks
from client.compute.codecs.blocks import BLOCKS, LARGEST_SCALE, LARGEST_VALUE
from client.compute.codecs.levels import VECTORS
from client.compute.errors import CodecError, PoisonedTensor
from client.compute.lane import lane_to
from client.compute.payload import SEAL_BYTES, Buffer, Direction, Encoding
from client.compute.readings import Check
from model_zoo.specs.codec import CODECS, Codec

_LARGEST = LARGEST_VALUE * LARGEST_SCALE
_LARGEST_BF16 = int(np.float32(_LARGEST).view(np.uint32)) >> 16
_PLAIN_DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
_HOST = torch.device("cpu")
POISON = "tensor holds NaN, infinity or an absurd magnitude"


def encode(tensor: Tensor, codec: Codec, direction: Direction, key: bytes = bytes(8)) -> memoryview:
    """Return the payload of a tensor, unsealed; as `begin_encoding` has it.

    Raises:
        PoisonedTensor, ValueError: as there.
    """
    payload = begin_encoding(tensor, codec, direction, key).now()
    lane_to(tensor.device).wait()
    return payload


def begin_encoding(
    tensor: Tensor, codec: Codec, direction: Direction, key: bytes = bytes(8)
) -> Check[memoryview]:
    """Return the payload of a tensor, unsealed. On a GPU nothing is waited for: its bytes are there
    after the lane's `mark`, and its memory must be kept until then.

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
    lane, chunk = lane_to(tensor.device), blocks.chunk_of(tensor.device)
    memory = lane.host_bytes(encoding.size_bytes)
    payload = memory.numpy().data
    payload[:SEAL_BYTES] = bytes(SEAL_BYTES)
    largest, means, taken_out = LARGEST_SCALE, None, None
    if codec in VECTORS:
        pieces = VECTORS[codec].encode(numbers, chunk)
    elif codec in BLOCKS:
        rows = numbers.view(-1, numbers.shape[-1])
        if encoding.centred:
            means = conditioning.channel_means(rows)
            lane.to_host(means.view(torch.uint8), memory[SEAL_BYTES : encoding.body_start])
            taken_out = means[: rows.shape[1]].float()
        chance = key if codec == "s4" and direction == "backward" else None
        pieces = BLOCKS[codec].encode(
            rows, chunk, rotated=encoding.rotated, means=taken_out, key=chance
        )
    else:
        pieces, largest = _plain(numbers.view(-1), _PLAIN_DTYPES[codec], chunk), _LARGEST
    peak = _send(pieces, memory[encoding.body_start :], tensor.device)
    if means is not None:  # they have the bound of the largest number
        peak = torch.maximum(peak, means.abs().amax().float() / LARGEST_VALUE)

    def judge(found: Sequence[float]) -> memoryview:
        _refuse_poison(found[0], largest, tensor.device)
        return payload

    return Check(peak.view(1), judge)


def decode(
    buffer: Buffer,
    shape: Sequence[int],
    codec: Codec,
    direction: Direction,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """Return the fp32 tensor in a payload from outside; as `begin_decoding` has it.

    Raises:
        CodecError: as there.
    """
    result, good = begin_decoding(buffer, shape, codec, direction, out=out)
    good.now()
    return result


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
    body = _view(memoryview(buffer)[encoding.body_start :], torch.uint8)
    rows, flat, lane = result.view(-1, encoding.shape[-1]), result.view(-1), lane_to(result.device)
    chunk = blocks.chunk_of(result.device)
    refuse: Callable[[Tensor], None]
    if codec in BLOCKS:
        coder = BLOCKS[codec]
        means = _checked_means(buffer, encoding).to(rows.device) if encoding.centred else None
        sent = lane.to_device(body)
        good = coder.decode(sent, rows, chunk, rotated=encoding.rotated, means=means)
        refuse = coder.refuse
    elif codec in VECTORS:
        quantiser = VECTORS[codec]
        good, refuse = quantiser.decode(lane.to_device(body), flat, chunk), quantiser.refuse
    else:
        flat.copy_(lane.to_device(body).view(_PLAIN_DTYPES[codec]))
        peaks = [piece.abs().amax() for piece in torch.split(flat, chunk)]
        good, refuse = torch.stack(peaks).amax() <= _LARGEST, _refuse_plain  # false for NaN as well

    def judge(found: Sequence[float]) -> None:
        if not found[0]:
            refuse(body)

    return result, Check(good.float().view(1), judge)


def _send(
    pieces: Iterable[tuple[slice, Tensor, Tensor]], body: Tensor, device: torch.device
) -> Tensor:
    """Copy each piece to its place while the next one is computed; return the largest of the
    numbers that come with the pieces."""
    lane, largest = lane_to(device), []
    for place, piece, peak in pieces:
        lane.to_host(piece, body[place])
        largest.append(peak)
    return largest[0] if len(largest) == 1 else torch.stack(largest).amax()


def _plain(
    numbers: Tensor, dtype: torch.dtype, chunk: int
) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Convert numbers (N,) to a type of torch; yield as the codecs do, with the largest magnitude
    of a piece."""
    at = 0
    for piece in torch.split(numbers, chunk):
        end = at + len(piece) * dtype.itemsize
        yield slice(at, end), piece.to(dtype).view(torch.uint8), piece.abs().amax()
        at = end


def _refuse_poison(peak: float, largest: float, device: torch.device) -> None:
    """Refuse a tensor whose peak is above the largest, or is no number.

    Raises:
        PoisonedTensor: so it is.
    """
    if not peak <= largest:
        lane_to(device).wait()  # the payload is written to until then
        raise PoisonedTensor(POISON)


def _refuse_plain(_: Tensor) -> None:
    raise CodecError("payload holds NaN, infinity or an absurd magnitude")


def _checked_means(buffer: Buffer, encoding: Encoding) -> Tensor:
    """Return the means of channels in a payload from outside, fp32 (C,) on the CPU."""
    sent = bytearray(memoryview(buffer)[SEAL_BYTES : encoding.body_start])
    # as integers the magnitudes of bf16 numbers keep their order, with NaN above all
    if int((np.frombuffer(sent, np.uint16) & 0x7FFF).max()) > _LARGEST_BF16:
        raise CodecError("means of channels reach beyond the largest number")
    return torch.frombuffer(sent, dtype=torch.bfloat16).float()[: encoding.shape[-1]]


def _view(buffer: memoryview, dtype: torch.dtype) -> Tensor:
    """The buffer as a tensor, without a copy; a read-only one is only ever read here."""
    if not buffer.readonly:
        return torch.frombuffer(buffer, dtype=dtype)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
        return torch.frombuffer(buffer, dtype=dtype)
