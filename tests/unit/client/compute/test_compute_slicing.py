"""Short of memory: fewer sequences at once, the same sums, and a clear word when none fits."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from client.compute import passes
from client.compute.replica import is_out_of_memory
from protocol.pipeline.effects import BackwardTask, ForwardTask, LossTask, PassTask
from tests.support.compute_stages import LocalWorker, opened, relative_error, tokens_of

CLOSE = 1e-6
ERRORS: list[Callable[[], Exception]] = [
    MemoryError,
    lambda: torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB"),
    lambda: RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1"),
    lambda: RuntimeError("MPS backend out of memory (MPS allocated: 1 GB)"),
]


def short_of_memory(
    worker: LocalWorker, at_once: int, error: Callable[[], Exception] = MemoryError
) -> list[int]:
    """From now on more than so many sequences do not fit; returns the sizes that were tried."""
    module, tried = worker.replica.module, list[int]()
    hidden = module.hidden

    def run(x: torch.Tensor, *beside: torch.Tensor | None) -> Any:
        tried.append(len(x))
        if len(x) > at_once:
            raise error()
        return hidden(x, *beside)

    module.hidden = run
    return tried


def step(workers: list[LocalWorker], microbatch: int) -> tuple[float, list[bytes]]:
    """One microbatch through two stages and back: its loss, and what went between them."""
    first, last = workers
    tokens = tokens_of(microbatch)
    boundary = first.call(ForwardTask(step=0, microbatch=microbatch), tokens)[1][0]
    request = LossTask(step=0, microbatch=microbatch)
    reply, (gradient,) = last.call(request, boundary, tokens)
    first.call(BackwardTask(step=0, microbatch=microbatch), gradient, tokens)
    return reply.loss_sum, [boundary, gradient]


def two_stages(model: str = "gpt") -> list[LocalWorker]:
    return [opened(stage, [2, 2], model=model) for stage in range(2)]


@pytest.mark.parametrize("model", ["gpt", "mixtral"])
@pytest.mark.parametrize("at_once", [1, 2])
@pytest.mark.parametrize("error", ERRORS)
def test_slices_add_up_to_the_same_sums(
    at_once: int, error: Callable[[], Exception], model: str
) -> None:
    plain, short = two_stages(model), two_stages(model)
    for worker in short:
        short_of_memory(worker, at_once, error)
    for microbatch in range(3):
        expected, actual = step(plain, microbatch), step(short, microbatch)
        assert actual[0] == pytest.approx(expected[0], rel=CLOSE)
        for ours, theirs in zip(actual[1], expected[1], strict=True):
            assert len(ours) == len(theirs)
            same = [a == b for a, b in zip(ours, theirs, strict=True)]
            assert sum(same) > 0.5 * len(same), "most bytes are equal"
    for one, other in zip(short, plain, strict=True):
        assert one.replica.sequences_at_once == at_once
        assert one.replica.counted == other.replica.counted
        error_of_sum = relative_error(one.replica.gradient_sum, other.replica.gradient_sum)
        assert error_of_sum < CLOSE


def test_the_size_that_fits_is_remembered() -> None:
    worker = opened(0, [4])
    tried = short_of_memory(worker, 1)
    for microbatch in range(2):
        worker.call(LossTask(0, microbatch), tokens_of(microbatch))
    assert tried == [3, 2, 1, 1, 1, 1, 1, 1]


def test_a_backward_pass_that_fails_is_done_again_in_slices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain, short = two_stages(), two_stages()
    backward = passes._Given.backward

    def run(context: Any, loss: torch.Tensor) -> Any:
        gradient, rest = backward(context, loss)
        if len(gradient) > 1:
            raise MemoryError
        return gradient, rest

    step(plain, 1)
    with monkeypatch.context() as patch:
        patch.setattr(passes._Given, "backward", staticmethod(run))
        step(short, 1)
    first = short[0].replica
    assert first.sequences_at_once == 1
    assert relative_error(first.gradient_sum, plain[0].replica.gradient_sum) < CLOSE
    assert not first.graphs


def test_what_was_counted_whole_is_taken_out_in_slices() -> None:
    worker = opened(0, [4])
    tokens = [tokens_of(microbatch) for microbatch in range(2)]
    worker.call(LossTask(step=0, microbatch=0), tokens[0])
    before = worker.replica.gradient_sum.clone()
    worker.call(LossTask(step=0, microbatch=1), tokens[1])
    short_of_memory(worker, 2)
    worker.call(PassTask(into="less", step=0, microbatch=1), tokens[1])
    assert worker.replica.counted == {0}
    assert relative_error(worker.replica.gradient_sum, before) < CLOSE


def test_when_no_sequence_fits_it_says_so_and_counts_nothing() -> None:
    first, last = two_stages()
    tokens = tokens_of(1)
    boundary = first.call(ForwardTask(step=0, microbatch=1), tokens)[1][0]
    short_of_memory(last, 0)
    failed = last.fails(LossTask(step=0, microbatch=1), boundary, tokens)
    assert failed.kind == "oom"
    assert "not even one sequence of 16 tokens" in failed.message
    assert "stage 1" in failed.message
    assert not last.replica.counted
    assert not last.replica.gradient_sum.any()


def test_other_failures_are_not_taken_for_it() -> None:
    assert not any(map(is_out_of_memory, (RuntimeError("MPS backend"), ValueError("memory"))))
    worker = opened(0, [4])

    def broken() -> Exception:
        return RuntimeError("a bug")

    tried = short_of_memory(worker, 0, broken)
    failed = worker.fails(LossTask(step=0, microbatch=1), tokens_of(1))
    assert failed.kind == "internal"
    assert tried == [3]


@pytest.mark.parametrize("error", ERRORS)
def test_a_stage_opens_though_a_whole_microbatch_does_not_fit(
    error: Callable[[], Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    warming_up = list[str]()

    def fail(*args: Any, **kwargs: Any) -> Any:
        warming_up.append("a whole microbatch")
        raise error()

    with monkeypatch.context() as short:
        short.setattr(passes, "run_loss", fail)
        worker = opened(0, [4])
    assert warming_up
    worker.call(LossTask(step=0, microbatch=0), tokens_of(0))
    assert worker.replica.counted == {0}
