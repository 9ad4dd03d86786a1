"""Stages that compute in bf16: what is rounded, what is not, and what is recomputed."""

from __future__ import annotations

import pytest
import torch

from client.compute import replica
from protocol.audit.record import Grade, judge
from protocol.pipeline.effects import BackwardTask, ForwardTask, LossTask
from tests.support.compute_stages import opened, tokens_of

CUT = [2, 2]
MODELS_OF_BF16 = ["gpt", "llama", "mixtral"]


def _relative(got: torch.Tensor, expected: torch.Tensor) -> float:
    return ((got - expected).norm() / expected.norm()).item()


@pytest.mark.parametrize("model", MODELS_OF_BF16)
def test_gradients_are_fp32_and_near_those_of_fp32(model: str) -> None:
    sums = {}
    for precision in ("fp32", "bf16"):
        worker = opened(0, [4], model=model, precision=precision)
        worker.call(LossTask(step=0, microbatch=1), tokens_of(1))
        sums[precision] = worker.replica.gradient_sum
        assert all(buffer.dtype == torch.float32 for buffer in worker.replica.buffers)
    apart = _relative(sums["bf16"], sums["fp32"])
    assert 1e-5 < apart < 5e-2


@pytest.mark.parametrize("model", MODELS_OF_BF16)
def test_a_recomputed_pass_has_the_bits_of_a_kept_one(model: str) -> None:
    sums = []
    for keep in (True, False):
        first, last = (opened(stage, CUT, model=model, precision="bf16") for stage in range(2))
        tokens = tokens_of(3)
        boundary = first.call(ForwardTask(0, 3), tokens)[1][0]
        (gradient,) = last.call(LossTask(0, 3), boundary, tokens)[1]
        if not keep:
            first.replica.drop_graphs()
        first.call(BackwardTask(step=0, microbatch=3), gradient, tokens)
        sums.append(first.replica.gradient_sum.clone())
    assert torch.equal(*sums)


def test_audits_allow_what_unlike_machines_round_in_bf16() -> None:
    """Measured 4.6e-3 between bf16 and fp32: honest in one, a lie in the other."""
    assert judge(4.6e-3, 4.6e-3, 4.6e-3, coarse=False, mixed=True) is Grade.AGREES
    assert judge(4.6e-3, 4.6e-3, 4.6e-3, coarse=True, mixed=True) is Grade.AGREES
    assert judge(4.6e-3, 4.6e-3, 4.6e-3, coarse=False) is not Grade.AGREES
    assert judge(0.0, 2.1e-1, 2.1e-1, coarse=True, mixed=True) is Grade.LIES


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
