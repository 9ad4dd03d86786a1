"""The device that is chosen; torch's own predicates stand in for GPUs that are not here."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from client.compute import device
from client.compute.errors import ShapeError
from client.compute.offload import OffloadedVectors, vectors_for
from client.compute.requests import Probe
from tests.support.compute_stages import open_request, opened

CPU, CUDA, MPS = map(torch.device, ("cpu", "cuda:0", "mps"))


@pytest.fixture(autouse=True)
def tried_anew() -> Iterator[None]:
    device.why_not.cache_clear()
    yield
    device.why_not.cache_clear()


def machine_with(
    monkeypatch: pytest.MonkeyPatch,
    *,
    cuda: int = 0,
    mps: bool = False,
    hip: str | None = None,
    broken: dict[str, str] | None = None,
) -> None:
    """Let torch say that this machine has such GPUs, and that they train, or why not."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.version, "cuda", "12.8" if cuda and hip is None else None)

    def train(tried: torch.device) -> None:
        if broken and tried.type in broken:
            raise NotImplementedError(f"{broken[tried.type]}\nmore words")

    monkeypatch.setattr(device, "_train_a_little", train)


@pytest.mark.parametrize(
    ("gpus", "auto", "platform", "others", "missing"),
    [
        ({}, "cpu", "cpu", {}, ("cuda", "cuda:0", "mps", "cuda:x", "mps:0", "gpu")),
        # parts of torch want its number
        ({"cuda": 2}, "cuda:0", "cuda", {"cuda": "cuda:0", "cuda:1": "cuda:1"}, ("cuda:2",)),
        ({"cuda": 1, "hip": "6.4"}, "cuda:0", "rocm", {"cuda": "cuda:0"}, ("cuda:1",)),
        ({"mps": True}, "mps", "mps", {"mps": "mps"}, ("mps:1", "cuda")),
    ],
)
def test_the_gpu_that_is_there_is_chosen(
    monkeypatch: pytest.MonkeyPatch,
    gpus: dict[str, Any],
    auto: str,
    platform: str,
    others: dict[str, str],
    missing: tuple[str, ...],
) -> None:
    machine_with(monkeypatch, **gpus)
    assert device.platform_of(CPU) == "cpu"
    assert device.platform_of(torch.device(auto)) == platform
    for name, chosen in {"auto": auto, "cpu": "cpu", **others}.items():
        assert device.select_device(name) == torch.device(chosen)
    for name in missing:
        with pytest.raises(ShapeError, match=f"no device '{name}'{'$' * ('cuda' in gpus)}"):
            device.select_device(name)


def test_products_in_fp32_are_made_in_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    machine_with(monkeypatch, cuda=1)
    before = torch.get_float32_matmul_precision()
    try:
        for name in ("auto", "cuda:0", "cpu"):
            torch.set_float32_matmul_precision("high")
            device.select_device(name)
            assert torch.get_float32_matmul_precision() == "highest"
    finally:
        torch.set_float32_matmul_precision(before)


def test_a_gpu_that_cannot_train_is_left_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    lacks = "aten::embedding is not implemented"
    machine_with(monkeypatch, cuda=1, mps=True, broken={"cuda": "CUDA driver is too old"})
    assert device.select_device("auto") == MPS
    device.why_not.cache_clear()
    machine_with(monkeypatch, mps=True, broken={"mps": lacks})
    assert device.select_device("auto") == CPU
    with pytest.raises(ShapeError, match="mps cannot train here: aten::embedding"):
        device.select_device("mps")
    probed = device.probe(Probe(sizes=[8]))
    assert probed.device == probed.platform == "cpu"
    assert probed.unused == {"mps": lacks}


def test_what_is_tried_runs_on_the_processor_too() -> None:
    assert device.why_not("cpu") == ""


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_gpu_whose_gradients_are_no_numbers_is_left(
    monkeypatch: pytest.MonkeyPatch, number: float
) -> None:
    backward = torch.autograd.backward

    def spoil(loss: torch.Tensor) -> None:
        backward(loss * number)

    monkeypatch.setattr(torch.autograd, "backward", spoil)
    assert device.why_not("cpu") == "a gradient of it is not finite"


def test_only_lack_of_memory_is_ignored_where_threads_are_chosen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replica, measure = opened(0, [4]).replica, mock.Mock(side_effect=MemoryError)
    monkeypatch.setattr(device, "_run_noise", measure)
    assert device.useful_threads(replica, 4) == 4
    measure.side_effect = RuntimeError("a bug of ours")
    with pytest.raises(RuntimeError, match="a bug"):
        device.useful_threads(replica, 4)
    assert device.useful_threads(replica, 1) == 1, "nothing is tried"
    measure.side_effect = None
    assert 0 <= device.warm_up(replica) < 10


def test_the_memory_of_an_apple_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.mps, "recommended_max_memory", lambda: 100)
    monkeypatch.setattr(torch.mps, "driver_allocated_memory", lambda: 30)
    assert device.memory_bytes(MPS) == (100, 70)


def test_the_processor_updates_what_an_apple_gpu_computes() -> None:
    request = open_request(0, [4])
    home = vectors_for(request, MPS)
    assert isinstance(home, OffloadedVectors)
    assert home.device == CPU
    assert home.zeros(4).device == CPU
    assert not vectors_for(request, CPU).offloaded


def test_another_gpu_or_driver_is_another_device(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Rates that were measured before are taken for the device of the same name only."""
    driver = tmp_path / "version"
    driver.write_text("NVRM version: 580.65.06\nGCC version: 12\n")
    monkeypatch.setattr(device, "_DRIVERS", (driver, tmp_path / "missing"))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA H200")
    assert device._name(CUDA) == "NVIDIA H200, NVRM version: 580.65.06"


def test_a_probe_measures_every_type_of_numbers() -> None:
    probed = device.probe(Probe(sizes=[8, 16], device="cpu"))
    assert probed.peaks.keys() == {"fp32", "bf16"}
    assert min(probed.peaks.values()) > 0
    assert 0 < probed.memory_available_bytes <= probed.memory_total_bytes


def test_a_probe_without_sizes_only_says_what_the_device_is() -> None:
    described = device.probe(Probe(sizes=[], device="cpu"))
    assert described.peaks == {}
    total, _ = device.memory_bytes(CPU)
    assert described.identity.startswith(f"{os.cpu_count()} x ")
    assert described.identity.endswith(f"{total} bytes, torch {torch.__version__}")


def test_only_a_gpu_with_room_multiplies_large_matrices() -> None:
    assert device._large_sizes(CPU, 1 << 40) == []
    assert device._large_sizes(CUDA, 80 << 30) == [4096, 8192]
    assert device._large_sizes(CUDA, 2 << 30) == [4096]
    assert device._large_sizes(CUDA, 1 << 20) == []


def test_a_slow_product_is_not_timed_over_and_over(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, run = iter(range(0, 1000, 10)), mock.Mock()
    monkeypatch.setattr(device, "_now", lambda of: next(clock))
    assert device._least_seconds(run, CPU) == 10
    assert run.call_count == 2
