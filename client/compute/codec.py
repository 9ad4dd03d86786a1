"""Tensors to wire payloads and back, in the codecs of `model_zoo.specs.codec`.

`encode` refuses tensors that are not finite, `decode` refuses everything but the expected tensor.
Numbers are coded by torch where they are, and only bytes are copied. Vectors have the same bytes
everywhere; boundaries on all processors, while a GPU may condition them with other last bits. Holds
no state.

Shapes: any of up to four dimensions; R rows (all but the last), C channels (the last).
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from client.compute import conditioning
from client.compute.codecs import s4, s8
from client.compute.codecs.levels import VECTORS
from client.compute.errors import CodecError, PoisonedTensor
from client.compute.lane import lane_to
from client.compute.payload import (
    HEADER,
    PRESCALED,
    ROTATED,
    SCALE_BYTES,
    TILE_BLOCKS,
    Buffer,
    Direction,
    Header,
    read_header,
    write_header,
)
from client.compute.readings import Check
from model_zoo.specs.codec import CODECS, Codec

_LARGEST = s8.LARGEST_VALUE * s8.LARGEST_SCALE
_PLAIN_DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
_HOST = torch.device("cpu")
ROUNDED_UP = 1 + 2**-7
"""Rounding raises a scale by this factor at most."""
POISON = "tensor holds NaN, infinity or an absurd magnitude"


def encode(
    tensor: Tensor,
    codec: Codec,
    *,
    direction: Direction,
    like: Buffer | None = None,
    key: bytes = bytes(8),
) -> memoryview:
    """Return the payload of a tensor, unsealed; as `begin_encoding` has it.

    Raises:
        PoisonedTensor, ValueError: as there.
    """
    payload = begin_encoding(tensor, codec, direction=direction, like=like, key=key).now()
    lane_to(tensor.device).wait()
    return payload


def begin_encoding(
    tensor: Tensor,
    codec: Codec,
    *,
    direction: Direction,
    like: Buffer | None = None,
    key: bytes = bytes(8),
) -> Check[memoryview]:
    """Return the payload of a tensor, unsealed. On a GPU nothing is waited for: its bytes are there
    after the lane's `mark`, and its memory must be kept until then.

    Args:
        tensor: fp32, of one to four dimensions.
        codec: how it is encoded.
        direction: written into the header.
        like: a payload that another replica has made of the same tensor: where the last bits of the
            numbers decide how they are conditioned, as there. What is no such payload is ignored.
        key: by which S4 rounds gradients: of `s4.rounding_key`.

    Raises:
        PoisonedTensor: the tensor holds NaN, infinity or an absurd magnitude; when it is judged, or
            here.
        ValueError: it is empty, not fp32, has more than four dimensions, or more than one where the
            codec is for vectors.
    """
    fits = tensor.dim() == 1 or not CODECS[codec].vectors
    if tensor.dtype != torch.float32 or tensor.numel() == 0 or not fits:
        raise ValueError(f"cannot encode {tuple(tensor.shape)} of {tensor.dtype} in {codec}")
    numbers = tensor.detach().contiguous()
    if codec == "s8":
        return _begin_s8(numbers, direction, like)
    header, chunk = Header(codec, direction, tuple(tensor.shape)), s8.chunk_of(tensor.device)
    lane = lane_to(tensor.device)
    memory = lane.host_bytes(header.size_bytes)
    payload = memory.numpy().data
    write_header(payload, header)
    largest = s8.LARGEST_SCALE
    if codec in VECTORS:
        pieces = VECTORS[codec].encode(numbers, chunk)
    elif codec == "s4":
        by_chance = direction == "backward"
        rows = numbers.view(-1, numbers.shape[-1])
        if header.centred:
            means = conditioning.channel_means(rows)
            lane.to_host(means.view(torch.uint8), memory[HEADER.size : header.body_start])
            rows = rows - means[: rows.shape[1]].float()
        pieces = s4.encode(rows, key if by_chance else None, chunk)
    else:
        pieces, largest = _plain(numbers.view(-1), _PLAIN_DTYPES[codec], chunk), _LARGEST
    peak = _send(pieces, payload[header.body_start :], tensor.device)

    def judge(found: Sequence[float]) -> memoryview:
        _refuse_poison(found[0], largest, tensor.device)
        return payload

    return Check(peak.view(1), judge)


def decode(
    buffer: Buffer,
    expected_shape: Sequence[int],
    *,
    codec: Codec | None = None,
    direction: Direction | None = None,
    out: Tensor | None = None,
    device: torch.device = _HOST,
) -> Tensor:
    """Return the fp32 tensor in a payload from outside; as `begin_decoding` has it.

    Raises:
        CodecError: as there.
    """
    result, good = begin_decoding(
        buffer, expected_shape, codec=codec, direction=direction, out=out, device=device
    )
    good.now()
    return result


def begin_decoding(
    buffer: Buffer,
    expected_shape: Sequence[int],
    *,
    codec: Codec | None = None,
    direction: Direction | None = None,
    out: Tensor | None = None,
    device: torch.device = _HOST,
) -> tuple[Tensor, Check[None]]:
    """Return the fp32 tensor in a payload from outside, which counts only if it is good.

    Args:
        buffer: the payload, not yet checked.
        expected_shape: shape that the manifest requires; nothing is allocated for another one.
        codec: required codec; None accepts any.
        direction: required direction; None accepts any.
        out: contiguous tensor to decode into; None: a new one.
        device: of a new one.

    Raises:
        CodecError: the payload is invalid or has another shape, here or when it is judged; `out`
            may hold part of it.
    """
    header = read_header(buffer, expected_shape, codec, direction)
    result = torch.empty(header.shape, device=device) if out is None else out
    body = _view(memoryview(buffer)[header.body_start :], torch.uint8)
    rows, flat, lane = result.view(-1, header.shape[-1]), result.view(-1), lane_to(result.device)
    chunk = s8.chunk_of(result.device)
    refuse: Callable[[Tensor], None]
    if header.codec == "s8":
        factors = _checked_factors(buffer, header) if header.prescaled else None
        factors = None if factors is None else factors.to(rows.device)
        there, refuse = lane.to_device(body), s8.refuse
        good = s8.decode(there, rows, factors, rotated=header.rotated, chunk=chunk)
    elif header.codec == "s4":
        good, refuse = s4.decode(lane.to_device(body), rows, chunk), s4.refuse
        if header.centred:
            rows += _checked_means(buffer, header).to(rows.device)
    elif header.codec in VECTORS:
        quantiser = VECTORS[header.codec]
        good, refuse = quantiser.decode(lane.to_device(body), flat, chunk), quantiser.refuse
    else:
        flat.copy_(lane.to_device(body).view(_PLAIN_DTYPES[header.codec]))
        peaks = [piece.abs().amax() for piece in torch.split(flat, chunk)]
        good, refuse = torch.stack(peaks).amax() <= _LARGEST, _refuse_plain  # false for NaN as well

    def judge(found: Sequence[float]) -> None:
        if not found[0]:
            refuse(body)

    return result, Check(good.float().view(1), judge)


def _begin_s8(numbers: Tensor, direction: Direction, like: Buffer | None) -> Check[memoryview]:
    """Encode in S8. Whether a GPU's numbers need conditioning is not known before they are read: so
    they have room for it, and are prescaled by ones where they do not need it."""
    rows, shape = numbers.view(-1, numbers.shape[-1]), tuple(numbers.shape)
    theirs = None if like is None else _header_of(like, shape, "s8", direction)
    needed: bool | Tensor = False  # a vector has no channels
    if numbers.dim() > 1 and direction != "average":
        wanted = None if theirs is None else theirs.flags != 0
        needed = conditioning.needed(rows, direction, wanted)
    factors = None
    if direction == "forward" and needed is not False:
        factors = conditioning.channel_factors(rows)
        if like is not None and theirs is not None and theirs.prescaled:
            there = _factors_of(like, theirs).to(factors.device)
            factors = conditioning.nearest_factors(factors, there)
        if isinstance(needed, Tensor):
            factors = torch.where(needed, factors, 1.0)
    rotated = needed if factors is None else False
    flags = PRESCALED if factors is not None else ROTATED if rotated is not False else 0
    plain = Header("s8", direction, shape)
    header = Header("s8", direction, shape, flags)
    lane = lane_to(rows.device)
    memory = lane.host_bytes(header.size_bytes)
    payload = memory.numpy().data
    reciprocals = None
    if factors is not None:
        lane.to_host(factors.view(torch.uint8), memory[HEADER.size : header.body_start])
        reciprocals = factors.float().reciprocal_()

    def judge(found: Sequence[float]) -> memoryview:
        is_needed, peak, largest = found
        _refuse_poison(peak, s8.LARGEST_SCALE, rows.device)
        used = header if is_needed else plain
        if used.prescaled and not peak * ROUNDED_UP * largest <= s8.LARGEST_SCALE:
            raise PoisonedTensor(POISON)
        made = payload[header.body_start - used.body_start :]
        write_header(made, used)
        return made

    chunk = s8.chunk_of(rows.device)
    pieces = s8.encode(rows, reciprocals, rotated=rotated, chunk=chunk)
    peak = _send(pieces, payload[header.body_start :], rows.device)
    largest = peak.new_ones(()) if factors is None else factors.amax().float()
    is_needed = needed.float() if isinstance(needed, Tensor) else peak.new_full((), float(needed))
    return Check(torch.stack([is_needed, peak, largest]), judge)


def _send(
    pieces: Iterable[tuple[slice, Tensor, Tensor]], body: memoryview, device: torch.device
) -> Tensor:
    """Copy each piece to its place while the next one is computed; return the largest of the
    numbers that come with the pieces."""
    lane, there, largest = lane_to(device), _view(body, torch.uint8), []
    for place, piece, peak in pieces:
        lane.to_host(piece, there[place])
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


def _header_of(
    buffer: Buffer, shape: Sequence[int], codec: Codec, direction: Direction
) -> Header | None:
    try:
        return read_header(buffer, shape, codec, direction)
    except CodecError:
        return None


def _factors_of(buffer: Buffer, header: Header) -> Tensor:
    prescale = bytearray(memoryview(buffer)[HEADER.size : header.body_start])
    return torch.frombuffer(prescale, dtype=torch.bfloat16)


def _checked_factors(buffer: Buffer, header: Header) -> Tensor:
    """Return the prescale factors in a payload from outside, fp32 (P,) on the CPU."""
    factors = _factors_of(buffer, header).float()
    s8.check_scales(factors, conditioning.SMALLEST_FACTOR, conditioning.LARGEST_FACTOR)
    if not _sane_product(memoryview(buffer)[header.body_start :], factors, header.codec):
        raise CodecError("prescale and scales make an absurd magnitude")
    return factors


def _checked_means(buffer: Buffer, header: Header) -> Tensor:
    """Return the means of channels in a payload from outside, fp32 (C,) on the CPU."""
    means = _factors_of(buffer, header).float()[: header.shape[-1]]
    s8.check_scales(means, -_LARGEST, _LARGEST)
    return means


def _sane_product(body: memoryview, factors: Tensor, codec: Codec) -> bool:
    """Whether the largest scale is allowed even where the largest prescale factor meets it."""
    block = CODECS[codec].block_bytes
    tile = TILE_BLOCKS * block
    data = np.frombuffer(body, np.uint8)
    split = len(data) // tile * tile
    whole, tail = data[:split].reshape(-1, tile), data[split:]
    tail_scales = tail[: len(tail) // block * SCALE_BYTES]
    scales = (whole[:, : TILE_BLOCKS * SCALE_BYTES], tail_scales)
    # as integers bf16 numbers that are not negative keep their order, with NaN above all
    largest = max((int(part.view("<u2").max()) for part in scales if part.size), default=0)
    scale = np.array(largest << 16, np.uint32).view(np.float32)
    return bool(float(scale) * float(factors.amax()) <= s8.LARGEST_SCALE)


def _view(buffer: memoryview, dtype: torch.dtype) -> Tensor:
    """The buffer as a tensor, without a copy; a read-only one is only ever read here."""
    if not buffer.readonly:
        return torch.frombuffer(buffer, dtype=dtype)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
        return torch.frombuffer(buffer, dtype=dtype)
