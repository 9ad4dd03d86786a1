"""Tensors to wire payloads and back, in one of three codecs: `s8`, `bf16`, `fp32`.

`encode` refuses tensors that are not finite, `decode` refuses everything but the expected tensor.
Numbers on the CPU are coded by the C kernel where it was built, else by torch; those on another
device are coded there, and only bytes are copied. The bytes are the same everywhere. Holds no state
beyond the kernels' scratch.

Shapes: any of up to four dimensions; R rows (all but the last), C channels (the last).
"""

import warnings
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from client.compute import conditioning, device_s8, native, s8
from client.compute.errors import CodecError, PoisonedTensor
from client.compute.lane import lane_to
from client.compute.payload import (
    BLOCK,
    BLOCK_BYTES,
    HEADER,
    PRESCALED,
    ROTATED,
    SCALE_BYTES,
    TILE_BLOCKS,
    TILE_BYTES,
    Buffer,
    CodecName,
    Direction,
    Header,
    padded_width,
    read_header,
    write_header,
)

_TILE = TILE_BLOCKS * BLOCK
_LARGEST = s8.LARGEST_VALUE * s8.LARGEST_SCALE
_PLAIN_DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
_CHECK_CHUNK = 1 << 18
_DEVICE_CHUNK = device_s8.CHUNK
_HOST = torch.device("cpu")
POISON = "tensor holds NaN, infinity or an absurd magnitude"


def encode(
    tensor: Tensor,
    codec: CodecName,
    *,
    direction: Direction,
    out: bytearray | None = None,
    like: Buffer | None = None,
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
        waits: until the bytes are there; else, from a GPU, they are after its lane's `mark`. The
            numbers are good either way, and the payload's memory must be kept until then.

    Raises:
        PoisonedTensor: the tensor holds NaN, infinity or an absurd magnitude.
        ValueError: it is empty, not fp32 or has more than four dimensions.
    """
    if tensor.dtype != torch.float32 or tensor.numel() == 0:
        raise ValueError(f"cannot encode {tuple(tensor.shape)} of {tensor.dtype}")
    numbers = tensor.detach().contiguous()
    if codec == "s8":
        return _encode_s8(numbers, direction, out, like, waits=waits)
    header = Header(codec, direction, tuple(tensor.shape))
    payload = _prepare(header, out, tensor.device)
    if not on_host(tensor.device):
        body = payload[header.body_start :]
        _encode_plain_there(numbers.view(-1), body, _PLAIN_DTYPES[codec], waits=waits)
        return payload
    _refuse_poison(numbers.view(-1))
    _view(payload[header.body_start :], _PLAIN_DTYPES[codec]).copy_(numbers.view(-1))
    return payload


def decode(
    buffer: Buffer,
    expected_shape: Sequence[int],
    *,
    codec: CodecName | None = None,
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
    if on_host(result.device):
        _decode_here(buffer, header, result)
    else:
        _decode_there(buffer, header, result)
    return result


def _decode_here(buffer: Buffer, header: Header, result: Tensor) -> None:
    if header.codec == "s8":
        _decode_s8(buffer, header, result)
        return
    body = memoryview(buffer)[header.body_start :]
    result.view(-1).copy_(_view(body, _PLAIN_DTYPES[header.codec]))
    if not _bounded(result.view(-1)):
        raise CodecError("payload holds NaN, infinity or an absurd magnitude")


def _encode_s8(
    numbers: Tensor,
    direction: Direction,
    out: bytearray | None,
    like: Buffer | None,
    *,
    waits: bool,
) -> memoryview:
    rows = numbers.view(-1, numbers.shape[-1])
    flags, factors = 0, None
    theirs = None if like is None else _header_of(like, numbers.shape, direction)
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
    header = Header("s8", direction, tuple(numbers.shape), flags)
    payload = _prepare(header, out, numbers.device)
    reciprocals = None
    if factors is not None:
        _view(payload[HEADER.size : header.body_start], torch.bfloat16).copy_(factors)
        reciprocals = factors.float().reciprocal_()
    body = payload[header.body_start :]
    if not on_host(numbers.device):
        waits = waits or factors is not None  # its bytes are looked at below
        there = _view(body, torch.uint8)
        _encode_s8_there(rows, there, reciprocals, rotated=header.rotated, waits=waits)
    elif not (native.takes(rows) and native.encode(rows, body, reciprocals, header.rotated)):
        rows = _padded_rows(numbers)  # torch refuses the same as the C kernel, with the reason
        if reciprocals is not None:
            rows = rows * reciprocals
        elif header.rotated:
            rows = conditioning.rotate(rows)
        _encode_body(rows.view(-1), _view(body, torch.uint8))
    if factors is not None and not _sane_product(body, factors):
        raise PoisonedTensor("tensor holds an absurd magnitude")
    return payload


def _decode_s8(buffer: Buffer, header: Header, result: Tensor) -> None:
    view = memoryview(buffer)
    body = view[header.body_start :]
    factors = _checked_factors(buffer, header) if header.prescaled else None
    numbers = result.view(-1, header.shape[-1])
    if native.takes(numbers) and native.decode(body, numbers, factors, header.rotated):
        return
    width = padded_width(header.shape)
    direct = result.dim() == 1 or header.shape[-1] == width
    rows = numbers if direct else torch.empty(len(numbers), width)
    _decode_body(_view(body, torch.uint8), rows.view(-1))
    if factors is not None:
        rows.mul_(factors)
    elif header.rotated:
        rows.copy_(conditioning.rotate(rows))
    if not direct:
        numbers.copy_(rows[:, : header.shape[-1]])


def on_host(device: torch.device) -> bool:
    """Whether numbers on a device are coded by the processor."""
    return device.type == "cpu"


def _encode_s8_there(
    rows: Tensor, body: Tensor, reciprocals: Tensor | None, *, rotated: bool, waits: bool
) -> None:
    """Encode rows (R, C) where they are; each piece is copied while the next one is computed."""
    lane, largest = lane_to(rows.device), []
    for place, piece, scale in device_s8.encode(rows, reciprocals, rotated=rotated):
        lane.to_host(piece, body[place])
        largest.append(scale)
    sane = bool(torch.stack(largest).amax() <= s8.LARGEST_SCALE)  # false for NaN as well
    if waits or not sane:
        lane.wait()
    if not sane:
        raise PoisonedTensor(POISON)


def _encode_plain_there(
    numbers: Tensor, body: memoryview, dtype: torch.dtype, *, waits: bool
) -> None:
    """Encode numbers (N,) where they are, in a type of torch."""
    lane, target = lane_to(numbers.device), _view(body, torch.uint8)
    peak = numbers.new_zeros(())
    size = dtype.itemsize * _DEVICE_CHUNK
    pieces = torch.split(numbers, _DEVICE_CHUNK)
    for piece, place in zip(pieces, torch.split(target, size), strict=True):
        peak = torch.maximum(peak, piece.abs().amax())
        lane.to_host(piece.to(dtype).view(torch.uint8), place)
    sane = bool(peak <= _LARGEST)
    if waits or not sane:
        lane.wait()
    if not sane:
        raise PoisonedTensor(POISON)


def _decode_there(buffer: Buffer, header: Header, result: Tensor) -> None:
    """Decode on the device of ``result``; a payload that is refused is decoded here once more, for
    the reason."""
    lane = lane_to(result.device)
    body = lane.to_device(_view(memoryview(buffer)[header.body_start :], torch.uint8))
    numbers = result.view(-1, header.shape[-1])
    factors = None
    if header.prescaled:
        ours = _checked_factors(buffer, header)
        factors = ours.to(result.device)
    if header.codec == "s8":
        good = device_s8.decode(body, numbers, factors, rotated=header.rotated)
    else:
        flat = result.view(-1).copy_(body.view(_PLAIN_DTYPES[header.codec]))
        good = flat.new_zeros(())
        for piece in torch.split(flat, _DEVICE_CHUNK):
            good = torch.maximum(good, piece.abs().amax())
        good = good <= _LARGEST
    if not bool(good):
        _decode_here(buffer, header, torch.empty(header.shape))
        raise CodecError("payload holds NaN, infinity or an absurd magnitude")


def _header_of(buffer: Buffer, shape: Sequence[int], direction: Direction) -> Header | None:
    try:
        return read_header(buffer, shape, "s8", direction)
    except CodecError:
        return None


def _factors_of(buffer: Buffer, header: Header) -> Tensor:
    prescale = bytearray(memoryview(buffer)[HEADER.size : header.body_start])
    return torch.frombuffer(prescale, dtype=torch.bfloat16)


def _checked_factors(buffer: Buffer, header: Header) -> Tensor:
    """Return the prescale factors in a payload from outside, fp32 (P,) on the CPU."""
    factors = _factors_of(buffer, header).float()
    s8.check_scales(factors, conditioning.SMALLEST_FACTOR, conditioning.LARGEST_FACTOR)
    if not _sane_product(memoryview(buffer)[header.body_start :], factors):
        raise CodecError("prescale and scales make an absurd magnitude")
    return factors


def _sane_product(body: memoryview, factors: Tensor) -> bool:
    """Whether the largest scale is allowed even where the largest prescale factor meets it."""
    data = np.frombuffer(body, np.uint8)
    split = len(data) // TILE_BYTES * TILE_BYTES
    whole, tail = data[:split].reshape(-1, TILE_BYTES), data[split:]
    tail_scales = tail[: len(tail) // BLOCK_BYTES * SCALE_BYTES]
    scales = (whole[:, : TILE_BLOCKS * SCALE_BYTES], tail_scales)
    # as integers bf16 numbers that are not negative keep their order, with NaN above all
    largest = max((int(part.view("<u2").max()) for part in scales if part.size), default=0)
    scale = np.array(largest << 16, np.uint32).view(np.float32)
    return bool(float(scale) * float(factors.amax()) <= s8.LARGEST_SCALE)


def _padded_rows(numbers: Tensor) -> Tensor:
    """(R, C) with C padded to whole blocks; a vector stays as it is, its end is padded later."""
    width = padded_width(numbers.shape)
    if numbers.dim() == 1 or numbers.shape[-1] == width:
        return numbers.view(-1, numbers.shape[-1])
    flat = numbers.view(-1, numbers.shape[-1])
    padded = numbers.new_zeros(len(flat), width)
    padded[:, : flat.shape[1]] = flat
    return padded


def _encode_body(numbers: Tensor, body: Tensor) -> None:
    """Yield whole tiles in place, and a short last one as a padded copy."""
    tiles, tail = divmod(numbers.numel(), _TILE)
    split = tiles * _TILE
    if tiles:
        s8.encode_blocks(numbers[:split].view(-1, BLOCK), body[: tiles * TILE_BYTES])
    if tail:
        padded = numbers.new_zeros(-(-tail // BLOCK), BLOCK)
        padded.view(-1)[:tail] = numbers[split:]
        s8.encode_blocks(padded, body[tiles * TILE_BYTES :])


def _decode_body(body: Tensor, numbers: Tensor) -> None:
    tiles, tail = divmod(numbers.numel(), _TILE)
    split = tiles * _TILE
    if tiles:
        s8.decode_blocks(body[: tiles * TILE_BYTES], numbers[:split].view(-1, BLOCK))
    if tail:
        padded = torch.empty(-(-tail // BLOCK), BLOCK)
        s8.decode_blocks(body[tiles * TILE_BYTES :], padded)
        numbers[split:] = padded.view(-1)[:tail]


def _prepare(header: Header, out: bytearray | None, device: torch.device) -> memoryview:
    """Return memory for a payload of numbers on a device, with its header."""
    size = header.size_bytes
    if out is None and on_host(device):
        payload = np.empty(size, np.uint8).data  # every byte of it will be written
    elif out is None:
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


def _refuse_poison(numbers: Tensor) -> None:
    if not _bounded(numbers):
        raise PoisonedTensor(POISON)


def _bounded(numbers: Tensor) -> bool:
    """Whether all are finite and of sane magnitude; NaN fails the comparison too."""
    chunks = torch.split(numbers, _CHECK_CHUNK)
    return all(bool(torch.abs(chunk).amax() <= _LARGEST) for chunk in chunks)
