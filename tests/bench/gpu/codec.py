"""S8 of a boundary on the device against copying the same numbers, and to the host."""

from __future__ import annotations

import argparse

import torch
from torch import Tensor

from client.compute.codec import decode, encode
from client.compute.codecs import s8
from client.compute.payload import check_seal, seal
from tests.bench.gpu.work import Found, timed


def boundary(asked: argparse.Namespace) -> Tensor:
    """Return numbers of a boundary (B T, C) on the device."""
    rows, width = (256, 64) if asked.small else (16 * 1024, 768)
    return torch.randn(rows, width, device=asked.device)


def codec(asked: argparse.Namespace) -> Found:
    """Time encoding and decoding against copies."""
    numbers = boundary(asked)
    low = numbers.bfloat16()
    host = torch.empty(low.shape, dtype=low.dtype, pin_memory=asked.device != "cpu")
    copied, fetched = torch.empty_like(numbers), {}
    fetched["copy there"] = timed(asked.device, lambda: copied.copy_(numbers))
    pinned = torch.empty(numbers.shape, pin_memory=asked.device != "cpu")
    fetched["fp32 to pinned host"] = timed(asked.device, lambda: pinned.copy_(numbers))
    fetched["bf16 to pinned host"] = timed(asked.device, lambda: host.copy_(low))
    payload = encode(numbers, "s8", direction="forward")
    fetched["encode to host"] = timed(
        asked.device, lambda: encode(numbers, "s8", direction="forward")
    )
    fetched["decode from host"] = timed(
        asked.device, lambda: decode(payload, numbers.shape, out=copied)
    )
    seal(payload)
    fetched["seal"] = timed("cpu", lambda: seal(payload), 5)
    fetched["check the seal"] = timed("cpu", lambda: check_seal(payload), 5)
    if asked.device != "cpu":
        chunk = s8.chunk_of(numbers.device)

        def encode_there() -> None:
            for _ in s8.encode(numbers, None, rotated=False, chunk=chunk):
                pass

        fetched["encode there"] = timed(asked.device, encode_there)
        body = torch.frombuffer(bytearray(payload), dtype=torch.uint8)[-len(numbers) * 6 * 130 :]
        there = body.to(asked.device)
        fetched["decode there"] = timed(
            asked.device, lambda: s8.decode(there, copied, None, rotated=False, chunk=chunk)
        )
    rate = {name: numbers.nbytes / seconds / 1e9 for name, seconds in fetched.items()}
    return {
        "mib_fp32": numbers.nbytes / 2**20,
        "mib_s8": len(payload) / 2**20,
        "ms": {name: 1e3 * seconds for name, seconds in fetched.items()},
        "gb_fp32_s": rate,
    }
