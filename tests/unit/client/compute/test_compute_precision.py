"""Stages that compute in bf16: what is rounded, what is not, and what is recomputed."""

from __future__ import annotations

import pytest
import torch

from client.compute import replica
from protocol.pipeline.effects import LossTask
from tests.support.compute_stages import opened, relative_error, tokens_of


@pytest.mark.parametrize("model", ["gpt", "llama", "mixtral"])
def test_gradients_are_fp32_and_near_those_of_fp32(model: str) -> None:
    sums = {}
    for precision in ("fp32", "bf16"):
        worker = opened(0, [4], model=model, precision=precision)
        worker.call(LossTask(step=0, microbatch=1), tokens_of(1))
        sums[precision] = worker.replica.gradient_sum
        assert all(buffer.dtype == torch.float32 for buffer in worker.replica.buffers)
    apart = relative_error(sums["bf16"], sums["fp32"])
    assert 1e-5 < apart < 5e-2


@pytest.mark.parametrize(
    ("card", "compute", "expected"),
    [
        (True, "auto", "bf16"),
        (False, "auto", "fp32"),
        (True, "fp32", "fp32"),
        (False, "bf16", "bf16"),
    ],
)
def test_a_worker_computes_in_what_its_own_device_is_fast_in(
    card: bool, compute: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica, "_is_fast", lambda _: card)
    assert opened(0, [4], precision=compute).replica.module.precision == expected
