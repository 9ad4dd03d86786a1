"""What this machine is measured to compute, and when it is measured again."""

from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from client.compute.process import Worker
from client.compute.requests import Probed
from client.config import Settings
from client.train.machine import capacity


class Measures:
    """A worker that answers a probe."""

    def __init__(self, device: str) -> None:
        self.measured = 0
        self.reply = Probed(
            device=device,
            identity="H100, driver 550, torch 2.9",
            peaks={"fp32": 4e9, "bf16": 8e9},
            memory_total_bytes=1,
            memory_available_bytes=1,
            platform=device,
        )

    async def call(self, request: Any, within_s: float) -> Probed:
        self.measured += bool(request.sizes)
        return self.reply if request.sizes else msgspec.structs.replace(self.reply, peaks={})


async def measured(worker: Measures, folder: Path) -> Probed:
    return await capacity.measured_capacity(cast(Worker, worker), Settings(), folder, 2)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
async def test_what_was_measured_is_kept(device: str, tmp_path: Path) -> None:
    worker = Measures(device)
    found = await measured(worker, tmp_path)
    assert found == worker.reply
    assert (found.peak_flops("fp32"), found.peak_flops("bf16")) == (4e9, 8e9)
    assert found.peak_flops("auto") == (8e9 if device == "cuda" else 4e9), "a card takes the faster"
    slow = msgspec.structs.replace(found, peaks={"fp32": 4e9, "bf16": 1e9})
    assert slow.peak_flops("auto") == 4e9
    again = await measured(worker, tmp_path)
    assert (again, worker.measured) == (found, 1)
    worker.reply = msgspec.structs.replace(worker.reply, memory_available_bytes=5)
    later = await measured(worker, tmp_path)
    expected = msgspec.structs.replace(found, memory_available_bytes=5)  # what is free changes
    assert (later, worker.measured) == (expected, 1)


async def test_a_disk_that_does_not_keep_it_stops_nobody(tmp_path: Path) -> None:
    no_folder = tmp_path / "file"
    no_folder.write_bytes(b"")
    assert (await measured(Measures("cpu"), no_folder)).peaks == {"fp32": 4e9, "bf16": 8e9}


async def test_another_machine_is_measured_again(tmp_path: Path) -> None:
    """A home is copied to a machine with another card, or its driver or torch is replaced."""
    worker = Measures("cuda")
    await measured(worker, tmp_path)
    worker.reply = msgspec.structs.replace(worker.reply, identity="RTX 3060, driver 550, torch 2.9")
    found = await measured(worker, tmp_path)
    assert (found.identity, worker.measured) == (worker.reply.identity, 2)


async def test_what_an_earlier_program_has_measured_is_measured_again(tmp_path: Path) -> None:
    worker = Measures("cpu")
    found = await measured(worker, tmp_path)
    kept = tmp_path / capacity.Entry.CAPACITY
    earlier = msgspec.json.decode(kept.read_bytes())
    for name in ("peaks", "identity"):
        del earlier[name]
    kept.write_bytes(msgspec.json.encode(earlier))
    assert (await measured(worker, tmp_path), worker.measured) == (found, 2)
