"""Tensors to wire payloads and back, in the codecs of `model_zoo.specs.codec`.

`encode` refuses tensors that are not finite, `decode` refuses everything but the expected tensor.
Numbers are coded by torch where they are, and only bytes are copied; on the CPU the C kernel does
the same faster, where it was built. The bytes are the same everywhere. Holds no state.

Shapes: any of up to four dimensions; R rows (all but the last), C channels (the last).
"""

import warnings
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from client.compute import conditioning, native
from client.compute.codecs import s4, s8
from client.compute.codecs.levels import VECTORS
from client.compute.errors import CodecError, PoisonedTensor
from client.compute.lane import Lane, lane_to
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
from model_zoo.specs.codec import CODECS, Codec

_LARGEST = s8.LARGEST_VALUE * s8.LARGEST_SCALE
_PLAIN_DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
_HOST = torch.device("cpu")
POISON = "tensor holds NaN, infinity or an absurd magnitude"


def encode(
    tensor: Tensor,
    codec: Codec,
    *,
    direction: Direction,
    out: bytearray | None = None,
    like: Buffer | None = None,
    key: bytes = bytes(8),
    waits: bool = True,
) -> memoryview:
    """Return the payload of a tensor, unsealed.

    Args:
        tensor: fp32, of one to four dimensions.
        codec: how it is encoded.
        direction: written into the header.
        out: buffer to write into, grown as needed; None: a new one.
        like: a payload that another replica has made of the same tensor: where the last bits of the
            numbers decide how they are conditioned, as there. What is no such payload is ignored.
        key: by which S4 rounds gradients: of `s4.rounding_key`.
        waits: until the bytes are there; else, from a GPU, they are after its lane's `mark`. The
            numbers are good either way, and the payload's memory must be kept until then.

    Raises:
        PoisonedTensor: the tensor holds NaN, infinity or an absurd magnitude.
        ValueError: it is empty, not fp32, has more than four dimensions, or more than one where the
            codec is for vectors.
    """
    fits = tensor.dim() == 1 or not CODECS[codec].vectors
    if tensor.dtype != torch.float32 or tensor.numel() == 0 or not fits:
        raise ValueError(f"cannot encode {tuple(tensor.shape)} of {tensor.dtype} in {codec}")
    numbers = tensor.detach().contiguous()
    if codec == "s8":
        return _encode_blocks(codec, numbers, direction, out, like, waits=waits)
    header = Header(codec, direction, tuple(tensor.shape))
    payload = _prepare(header, out, tensor.device)
    body = _view(payload[header.body_start :], torch.uint8)
    chunk = s8.chunk_of(tensor.device)
    if codec in VECTORS:
        _send(VECTORS[codec].encode(numbers, chunk), body, tensor.device, waits=waits)
    elif codec == "s4":
        rows, by_chance = numbers.view(-1, numbers.shape[-1]), direction == "backward"
        pieces = s4.encode(rows, key if by_chance else None, chunk)
        _send(pieces, body, tensor.device, waits=waits)
    else:
        _encode_plain(numbers.view(-1), body, _PLAIN_DTYPES[codec], waits=waits)
    return payload


def decode(
    buffer: Buffer,
    expected_shape: Sequence[int],
    *,
    codec: Codec | None = None,
    direction: Direction | None = None,
    out: Tensor | None = None,
    device: torch.device = _HOST,
) -> Tensor:
    """Return the fp32 tensor in a payload from outside.

    Args:
        buffer: the payload, not yet checked.
        expected_shape: shape that the manifest requires; nothing is allocated for another one.
        codec: required codec; None accepts any.
        direction: required direction; None accepts any.
        out: contiguous tensor to decode into; None: a new one.
        device: of a new one.

    Raises:
        CodecError: the payload is invalid or has another shape; `out` may hold part of it.
    """
    header = read_header(buffer, expected_shape, codec, direction)
    result = torch.empty(header.shape, device=device) if out is None else out
    body = _view(memoryview(buffer)[header.body_start :], torch.uint8)
    rows, flat, lane = result.view(-1, header.shape[-1]), result.view(-1), lane_to(result.device)
    chunk = s8.chunk_of(result.device)
    if header.codec == "s8":
        factors = _checked_factors(buffer, header) if header.prescaled else None
        if not _decode_blocks(body, rows, factors, header):
            s8.refuse(body)
        return result
    if header.codec == "s4":
        if not bool(s4.decode(lane.to_device(body), rows, chunk)):
            s4.refuse(body)
        return result
    if header.codec in VECTORS:
        quantiser = VECTORS[header.codec]
        if not bool(quantiser.decode(lane.to_device(body), flat, chunk)):
            quantiser.refuse(body)
        return result
    flat.copy_(lane.to_device(body).view(_PLAIN_DTYPES[header.codec]))
    peaks = [piece.abs().amax() for piece in torch.split(flat, chunk)]
    if not bool(torch.stack(peaks).amax() <= _LARGEST):  # false for NaN as well
        raise CodecError("payload holds NaN, infinity or an absurd magnitude")
    return result


def _encode_blocks(
    codec: Codec,
    numbers: Tensor,
    direction: Direction,
    out: bytearray | None,
    like: Buffer | None,
    *,
    waits: bool,
) -> memoryview:
    rows = numbers.view(-1, numbers.shape[-1])
    flags, factors = 0, None
    theirs = None if like is None else _header_of(like, numbers.shape, codec, direction)
    conditioned = None if theirs is None else theirs.flags != 0
    if numbers.dim() == 1:
        pass  # a vector has no channels
    elif direction == "forward" and conditioning.needs_prescale(rows, conditioned):
        flags, factors = PRESCALED, conditioning.channel_factors(rows)
        if like is not None and theirs is not None and theirs.prescaled:
            known = _factors_of(like, theirs).to(factors.device)
            factors = conditioning.nearest_factors(factors, known)
    elif direction == "backward" and conditioning.needs_rotation(rows, conditioned):
        flags = ROTATED
    header = Header(codec, direction, tuple(numbers.shape), flags)
    payload = _prepare(header, out, numbers.device)
    reciprocals = None
    if factors is not None:
        _view(payload[HEADER.size : header.body_start], torch.bfloat16).copy_(factors)
        reciprocals = factors.float().reciprocal_()
    body = payload[header.body_start :]
    if native.takes(rows):
        if not native.encode(rows, body, reciprocals, header.rotated):
            raise PoisonedTensor(POISON)
    else:
        waits = waits or factors is not None  # its bytes are looked at below
        _encode_rows(header, rows, _view(body, torch.uint8), reciprocals, waits=waits)
    if factors is not None and not _sane_product(body, factors, codec):
        raise PoisonedTensor("tensor holds an absurd magnitude")
    return payload


def _encode_rows(
    header: Header, rows: Tensor, body: Tensor, reciprocals: Tensor | None, *, waits: bool
) -> None:
    """Encode rows (R, C) where they are."""
    chunk = s8.chunk_of(rows.device)
    pieces = s8.encode(rows, reciprocals, rotated=header.rotated, chunk=chunk)
    _send(pieces, body, rows.device, waits=waits)


def _send(
    pieces: Iterable[tuple[slice, Tensor, Tensor]],
    body: Tensor,
    device: torch.device,
    *,
    waits: bool,
) -> None:
    """Copy each piece to its place while the next one is computed.

    Raises:
        PoisonedTensor: the largest scale of a piece is too large.
    """
    lane, largest = lane_to(device), []
    for place, piece, scale in pieces:
        lane.to_host(piece, body[place])
        largest.append(scale)
    _sent(lane, bool(torch.stack(largest).amax() <= s8.LARGEST_SCALE), waits=waits)


def _encode_plain(numbers: Tensor, body: Tensor, dtype: torch.dtype, *, waits: bool) -> None:
    """Encode numbers (N,) where they are, in a type of torch."""
    lane, peaks, chunk = lane_to(numbers.device), [], s8.chunk_of(numbers.device)
    pieces = torch.split(numbers, chunk)
    for piece, place in zip(pieces, torch.split(body, dtype.itemsize * chunk), strict=True):
        peaks.append(piece.abs().amax())
        lane.to_host(piece.to(dtype).view(torch.uint8), place)
    _sent(lane, bool(torch.stack(peaks).amax() <= _LARGEST), waits=waits)


def _sent(lane: Lane, sane: bool, *, waits: bool) -> None:
    """Wait until what was copied is there, if the caller does; what is not ``sane`` is not sent.

    Raises:
        PoisonedTensor: it is not.
    """
    if waits or not sane:  # NaN is not
        lane.wait()
    if not sane:
        raise PoisonedTensor(POISON)


def _decode_blocks(body: Tensor, rows: Tensor, factors: Tensor | None, header: Header) -> bool:
    """Decode a body into rows (R, C), where these are; False: it is not good."""
    if native.takes(rows):
        return bool(native.decode(body.numpy().data, rows, factors, header.rotated))
    there = lane_to(rows.device).to_device(body)
    factors = None if factors is None else factors.to(rows.device)
    chunk = s8.chunk_of(rows.device)
    return bool(s8.decode(there, rows, factors, rotated=header.rotated, chunk=chunk))


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


def _prepare(header: Header, out: bytearray | None, device: torch.device) -> memoryview:
    """Return memory for a payload of numbers on a device, with its header."""
    size = header.size_bytes
    if out is None:  # every byte of it will be written
        payload = lane_to(device).host_bytes(size).numpy().data
    else:
        if len(out) < size:
            out.extend(bytes(size - len(out)))
        payload = memoryview(out)[:size]
    write_header(payload, header)
    return payload


def _view(buffer: memoryview, dtype: torch.dtype) -> Tensor:
    """The buffer as a tensor, without a copy; a read-only one is only ever read here."""
    if not buffer.readonly:
        return torch.frombuffer(buffer, dtype=dtype)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
        return torch.frombuffer(buffer, dtype=dtype)
