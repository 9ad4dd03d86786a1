"""Blocks are compiled when a stage is opened, compared, or left; and have the same numbers."""

import copy
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from client.compute import compiling
from client.compute.compiling import CompiledBlocks, Run
from model_zoo.models.documents import documents_of
from model_zoo.stages import twin
from protocol.pipeline.effects import BackwardTask, ForwardTask, KeepVersionTask, PassTask
from tests.support.codecs import decode
from tests.support.compute_stages import (
    LocalWorker,
    open_request,
    opened,
    relative_error,
    tokens_of,
)

Compile = Callable[[Run], Run]


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Callable[[Compile], list[int]]:
    """Takes what stands in for torch's compiler; returns the number of calls."""

    def use(compile_: Compile) -> list[int]:
        calls = [0]

        def compiled(run: Run) -> Run:
            made = compile_(run)

            def counting(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
                calls[0] += 1
                return made(block, x)

            return counting

        monkeypatch.setattr(compiling, "compiled", compiled)
        monkeypatch.setattr(compiling, "_prepare", lambda folder: None)
        return calls

    return use


def as_it_is(run: Run) -> Run:
    return run


def compiling_worker(folder: Path, *, asked: str = "on", **changes: Any) -> tuple[LocalWorker, str]:
    """A worker with a stage, and what it says of compiling it."""
    worker = LocalWorker()
    how = {"compile": asked, "compile_folder": str(folder)}
    reply, _ = worker.call(open_request(0, [2, 2], **how, **changes))
    return worker, reply.words


def test_blocks_run_compiled_from_the_first_pass_on(tmp_path: Path, compiler: Any) -> None:
    calls = compiler(as_it_is)
    worker, words = compiling_worker(tmp_path)
    assert words == "blocks run compiled"
    assert not worker.replica.gradient_sum.any()
    assert calls == [4 + 2]  # each block is compared without and with a graph; and the warm-up
    worker.call(ForwardTask(step=0, microbatch=1), tokens_of(1))
    assert calls == [8]  # one for each block


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "mixtral"}, "a mixture of experts"),
        ({"asked": "auto"}, ""),
        ({"asked": "off"}, ""),
    ],
)
def test_what_is_not_compiled_runs_as_it_is(
    changes: dict[str, Any], words: str, tmp_path: Path, compiler: Any
) -> None:
    """A processor compiles only if it is told to."""
    calls = compiler(as_it_is)
    worker, said = compiling_worker(tmp_path, **changes)
    assert words in said
    assert bool(words) is bool(said)
    worker.call(ForwardTask(step=0, microbatch=0), tokens_of(0))
    assert calls == [0]


def failing(run: Run) -> Run:
    def fail(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("InvalidCxxCompiler: No working C++ compiler found\n in g++")

    return fail


def times(factor: float) -> Compile:
    return lambda run: lambda block, x: run(block, x) * factor


@pytest.mark.parametrize(
    ("compile_", "why"),
    [
        (times(1.1), "compiled ones compute other numbers"),
        (times(float("nan")), "compiled ones compute other numbers"),
        (failing, "InvalidCxxCompiler: No working C++ compiler found"),
    ],
)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_blocks_that_fail_or_compute_other_numbers_are_not_used(
    compile_: Compile, why: str, precision: str, tmp_path: Path, compiler: Any
) -> None:
    calls = compiler(compile_)
    worker, words = compiling_worker(tmp_path, precision=precision)
    assert words.startswith(f"blocks run uncompiled: {why}")
    assert "g++" not in words
    before, forward = calls[0], ForwardTask(step=0, microbatch=0)
    _, sent = worker.call(forward, tokens_of(0))
    assert sent == opened(0, [2, 2], precision=precision).call(forward, tokens_of(0))[1]
    assert calls[0] == before


def test_a_folder_that_cannot_be_made_is_the_reason_and_torch_is_not_told_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    (tmp_path / "file").touch()
    assert "uncompiled: " in compiling_worker(tmp_path / "file" / "compiled")[1]
    assert "TORCHINDUCTOR_CACHE_DIR" not in os.environ


def test_a_volunteer_compiles_in_one_process_unless_it_is_told_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._inductor import config

    monkeypatch.setattr(config, "compile_threads", config.compile_threads)
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TORCHINDUCTOR_COMPILE_THREADS"):
        monkeypatch.setenv(name, "3")
    for threads in (3, 1):
        compiling._prepare(str(tmp_path))
        assert config.compile_threads == threads
        monkeypatch.delenv("TORCHINDUCTOR_COMPILE_THREADS")


def test_other_shapes_and_documents_run_as_they_are(compiler: Any) -> None:
    calls = compiler(as_it_is)
    block, x = nn.Identity(), torch.zeros(2, 4, 8)
    block.forward = lambda x, documents: x + 1  # type: ignore[method-assign, assignment]
    blocks = CompiledBlocks((2, 4, 8))
    assert torch.equal(blocks(block, x, None), x + 1)
    assert calls == [1]
    blocks(block, x[:1], None)
    blocks(block, x, documents_of(torch.ones(2, 4, dtype=torch.bool), x.device))
    assert calls == [1]
    assert copy.deepcopy(blocks) is blocks


def test_a_compiled_block_that_fails_later_is_left_and_the_pass_succeeds(
    tmp_path: Path, compiler: Any
) -> None:
    broken = False

    def breaking(run: Run) -> Run:
        def fail(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
            if broken:
                raise RuntimeError("undefined symbol: kernel")
            return run(block, x)

        return fail

    calls = compiler(breaking)
    worker, words = compiling_worker(tmp_path)
    assert words == "blocks run compiled"
    broken = True
    _, sent = worker.call(ForwardTask(step=0, microbatch=0), tokens_of(0))
    assert sent == opened(0, [2, 2]).call(ForwardTask(step=0, microbatch=0), tokens_of(0))[1]
    after = calls[0]
    worker.call(ForwardTask(step=0, microbatch=1), tokens_of(1))
    assert calls[0] == after


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_compiled_and_uncompiled_replicas_agree(tmp_path: Path) -> None:
    """With what torch really compiles: recomputed equals kept, and an audit finds nothing."""
    worker, words = compiling_worker(tmp_path, graphs_kept=4)
    assert words == "blocks run compiled"
    plain = opened(0, [2, 2], graphs_kept=4)
    _, (ours, *_) = worker.call(ForwardTask(step=0, microbatch=0), tokens_of(0))
    _, (theirs, *_) = plain.call(ForwardTask(step=0, microbatch=0), tokens_of(0))
    out = worker.replica.wire
    ones = out.boundary_out(torch.randn(out.boundary_shape), "backward").now().ready()
    worker.call(BackwardTask(step=0, microbatch=0), bytes(ones))
    plain.call(BackwardTask(step=0, microbatch=0), bytes(ones))
    kept = worker.replica.gradient_sum.clone()
    assert relative_error(kept, plain.replica.gradient_sum) < 1e-5
    again, words = compiling_worker(tmp_path, graphs_kept=0)
    assert words == "blocks run compiled"
    again.call(ForwardTask(step=0, microbatch=0), tokens_of(0))
    again.call(BackwardTask(step=0, microbatch=0), bytes(ones), tokens_of(0))
    assert torch.equal(again.replica.gradient_sum, kept)
    assert isinstance(twin(worker.replica.module).runner, CompiledBlocks)
    plain.call(KeepVersionTask(step=0))
    found, _ = plain.call(
        PassTask(into="audit", step=0, microbatch=0), bytes(ones), tokens_of(0), ours
    )
    assert found.apart[0] < 1e-5
    codec = out.run.boundary_codec
    ours, theirs = (decode(each, out.boundary_shape, codec, "forward") for each in (ours, theirs))
    assert relative_error(ours, theirs) < 1e-5
