"""Compiled blocks: prepared by another process, taken over, given up; and the same numbers."""

from __future__ import annotations

import copy
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

from client.compute import compile_block, compiling
from client.compute.compiling import CompiledBlocks, CompileJob, Verdict
from client.compute.errors import PoisonedTensor
from client.compute.requests import (
    AskCompiled,
    Backward,
    Forward,
    KeepVersion,
    Recompute,
)
from model_zoo.models.documents import documents_of
from model_zoo.stages import run_block, twin
from tests.support.compute_stages import (
    SEQUENCES,
    TOKENS,
    LocalWorker,
    open_request,
    opened,
    relative_error,
    tokens_of,
)

GOOD = Verdict(faster=1.5, seconds=2.0, apart=1e-7)


def answering(monkeypatch: pytest.MonkeyPatch, said: bytes, code: int = 0) -> None:
    """Let the process that compiles be one that says this at once."""
    script = f"import sys; sys.stdin.read(); sys.stdout.buffer.write({said!r}); sys.exit({code})"
    monkeypatch.setattr(compiling, "_COMMAND", (sys.executable, "-c", script))


@pytest.fixture
def marked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Stands in for what torch compiles; has the number of calls."""
    calls = [0]

    def compiled(run: Callable[..., Any]) -> Callable[..., Any]:
        def counting(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
            calls[0] += 1
            return run(block, x)  # type: ignore[no-any-return]

        return counting

    monkeypatch.setattr(compiling, "compiled", compiled)
    monkeypatch.setattr(compiling, "prepare", lambda folder: None)
    return calls


def compiling_worker(folder: Path, *, asked: str = "on", **changes: Any) -> LocalWorker:
    return opened(0, [2, 2], compile=asked, compile_folder=str(folder), **changes)


def told(worker: LocalWorker) -> tuple[str, str]:
    reply, _ = worker.call(AskCompiled())
    return reply.state, reply.words


def settled(worker: LocalWorker, within_s: float = 60.0) -> tuple[str, str]:
    """How far compiling is, once the process has ended."""
    ends = time.monotonic() + within_s
    while (said := told(worker))[0] == "running":
        assert time.monotonic() < ends
        time.sleep(0.05)
    return said


def test_training_goes_on_uncompiled_until_the_process_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, marked: list[int]
) -> None:
    answering(monkeypatch, msgspec.json.encode(GOOD))
    worker = compiling_worker(tmp_path)
    process = worker.executor._opened.compiling._process  # type: ignore[union-attr]
    assert process is not None
    with monkeypatch.context() as patch:
        patch.setattr(subprocess.Popen, "poll", lambda self: None)
        state, words = told(worker)
        assert state == "running"
        assert "goes on uncompiled" in words
        worker.call(Forward(step=0, microbatch=0), tokens_of(0))
        assert marked == [0]
    assert settled(worker) == ("on", "blocks run compiled: 1.50 x as fast as uncompiled")
    before = marked[0]
    assert before == 2  # they are loaded by one microbatch of noise
    assert not worker.replica.gradient_sum.any()
    worker.call(Forward(step=0, microbatch=1), tokens_of(1))
    assert marked[0] == before + 2  # one for each block


@pytest.mark.parametrize(
    ("said", "code", "words"),
    [
        (msgspec.json.encode(Verdict(problem="no C++ compiler")), 0, "no C++ compiler"),
        (b"", 9, "the compiling process ended with status 9"),
        (b'{"faster":"much"}', 0, "the compiling process ended with status 0"),
    ],
)
def test_what_cannot_be_compiled_runs_on_with_the_reason(
    said: bytes,
    code: int,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    marked: list[int],
) -> None:
    answering(monkeypatch, said, code)
    worker = compiling_worker(tmp_path)
    assert settled(worker) == ("failed", f"blocks run uncompiled: {words}")
    worker.call(Forward(step=0, microbatch=0), tokens_of(0))
    assert marked == [0]


def test_no_process_is_started_for_what_cannot_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiling, "_COMMAND", ("/does/not/exist",))
    assert "No such file" in told(compiling_worker(tmp_path))[1]
    mixture = compiling_worker(tmp_path, model="mixtral")
    assert "mixture of experts" in told(mixture)[1]


def test_a_stage_that_is_cut_over_devices_runs_as_it_is(tmp_path: Path, marked: list[int]) -> None:
    """Also where an earlier session, on one device, has found that compiled blocks are faster."""
    worker = compiling_worker(tmp_path, asked="off")
    opened_stage = worker.executor._opened
    assert opened_stage is not None
    kept = opened_stage.compiling._job.verdict_path
    kept.write_bytes(msgspec.json.encode(Verdict(faster=1.5)))
    asked = {"compile": "on", "compile_folder": str(tmp_path), "inside": "fsdp"}
    request = open_request(0, [2, 2], **asked)
    cut = compiling.Compiling(request, opened_stage.replica, torch.device("cpu"))
    assert cut.told().state == "failed"
    assert "cut over devices" in cut.told().words
    worker.call(Forward(step=0, microbatch=0), tokens_of(0))
    assert marked == [0]


@pytest.mark.parametrize("asked", ["off", "auto"])
def test_a_processor_compiles_only_if_it_is_told_to(
    asked: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiling, "_COMMAND", ("/does/not/exist",))
    assert told(compiling_worker(tmp_path, asked=asked)) == ("off", "")


@pytest.mark.parametrize(
    ("asked", "faster", "state"),
    [("on", 0.9, "on"), ("auto", 0.9, "failed"), ("auto", 1.5, "on"), ("off", 1.5, "off")],
)
def test_what_an_earlier_session_has_measured_decides(
    asked: str, faster: float, state: str, tmp_path: Path, marked: list[int]
) -> None:
    job = compiling_worker(tmp_path, asked="off").executor._opened.compiling._job  # type: ignore[union-attr]
    job.verdict_path.write_bytes(msgspec.json.encode(Verdict(faster=faster)))
    worker = compiling_worker(tmp_path, asked=asked)
    assert told(worker)[0] == state
    worker.call(Forward(step=0, microbatch=0), tokens_of(0))
    assert bool(marked[0]) == (state == "on")


def test_other_shapes_and_documents_run_as_they_are(marked: list[int]) -> None:
    block, x = nn.Identity(), torch.zeros(2, 4, 8)
    block.forward = lambda x, documents: x + 1  # type: ignore[method-assign, assignment]
    blocks = CompiledBlocks((2, 4, 8))
    assert torch.equal(blocks(block, x, None), x + 1)
    assert marked == [1]
    blocks(block, x[:1], None)
    blocks(block, x, documents_of(torch.ones(2, 4, dtype=torch.bool), x.device))
    assert marked == [1]
    assert copy.deepcopy(blocks) is blocks


@pytest.mark.parametrize("at_once", [True, False])
def test_a_compiled_block_that_fails_is_left_and_the_pass_succeeds(
    at_once: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compiled(run: Callable[..., Any]) -> Callable[..., Any]:
        calls = [0]

        def fail(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
            calls[0] += 1
            if calls[0] <= 2 and not at_once:
                return run(block, x)  # type: ignore[no-any-return]
            raise RuntimeError("undefined symbol: kernel\nmore")

        return fail

    monkeypatch.setattr(compiling, "compiled", compiled)
    monkeypatch.setattr(compiling, "prepare", lambda folder: None)
    answering(monkeypatch, msgspec.json.encode(GOOD))
    worker, plain = compiling_worker(tmp_path), opened(0, [2, 2])
    assert settled(worker)[0] == ("failed" if at_once else "on")
    _, sent = worker.call(Forward(step=0, microbatch=0), tokens_of(0))
    assert sent == plain.call(Forward(step=0, microbatch=0), tokens_of(0))[1]
    assert told(worker) == (
        "failed",
        "blocks run uncompiled: a compiled one failed: undefined symbol: kernel",
    )


def test_what_would_fail_anyway_blames_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, marked: list[int]
) -> None:
    answering(monkeypatch, msgspec.json.encode(GOOD))
    worker = compiling_worker(tmp_path)
    assert settled(worker)[0] == "on"
    compiled = worker.executor._opened.compiling  # type: ignore[union-attr]
    assert not compiled.gives_up(PoisonedTensor("not finite"))
    assert not compiled.gives_up(MemoryError())
    assert told(worker)[0] == "on"


def test_a_stage_that_is_closed_ends_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = "import time; time.sleep(600)"
    monkeypatch.setattr(compiling, "_COMMAND", (sys.executable, "-c", script))
    worker = compiling_worker(tmp_path)
    process = worker.executor._opened.compiling._process  # type: ignore[union-attr]
    worker.call(open_request(0, [2, 2]))
    assert process is not None
    assert process.returncode is not None
    assert told(worker) == ("off", "")


def test_a_verdict_is_of_one_shape_and_machine(tmp_path: Path) -> None:
    model = open_request(0, [2, 2]).model
    job = CompileJob(model, (0, 1), True, 3, 16, "fp32", "cpu", 1, str(tmp_path))
    others = [
        msgspec.structs.replace(job, sequences=4),
        msgspec.structs.replace(job, precision="bf16"),
        msgspec.structs.replace(job, model=msgspec.structs.replace(model, width=64)),
    ]
    assert len({each.verdict_path for each in [job, *others]}) == 4
    moved = msgspec.structs.replace(job, folder=str(tmp_path / "x"))
    assert moved.verdict_path.name == job.verdict_path.name


def job_of(tmp_path: Path, **changes: Any) -> CompileJob:
    model = open_request(0, [2, 2]).model
    job = CompileJob(model, (0, 1), True, SEQUENCES, TOKENS, "fp32", "cpu", 1, str(tmp_path))
    return msgspec.structs.replace(job, **changes)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_equal_numbers_pass_and_others_are_refused(
    precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of(tmp_path, precision=precision)
    monkeypatch.setattr(compile_block, "compiled", lambda run: lambda block, x: run(block, x))
    found = compile_block.judge(job)
    assert (found.problem, found.apart) == ("", 0.0)
    assert found.faster > 0
    for factor in (1.1, float("nan")):
        monkeypatch.setattr(
            compile_block,
            "compiled",
            lambda run: lambda block, x: run(block, x) * factor,  # noqa: B023
        )
        assert "computes other numbers" in compile_block.judge(job).problem


def test_an_error_of_the_compiler_is_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compiled(run: object) -> object:
        def fail(block: object, x: object) -> None:
            raise RuntimeError("InvalidCxxCompiler: No working C++ compiler found\n in g++")

        return fail

    monkeypatch.setattr(compile_block, "compiled", compiled)
    verdict = compile_block.verdict_of(job_of(tmp_path))
    assert verdict.problem == "InvalidCxxCompiler: No working C++ compiler found"
    assert not job_of(tmp_path).verdict_path.exists()  # it may be installed by the next time


def test_a_good_verdict_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def judge(job: CompileJob) -> Verdict:
        asked.append(job)
        return GOOD

    monkeypatch.setattr(compile_block, "judge", judge)
    for _ in range(2):
        assert compile_block.verdict_of(job_of(tmp_path)) == GOOD
    assert len(asked) == 1


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_compiled_and_uncompiled_replicas_agree(tmp_path: Path) -> None:
    """With what torch really compiles: recomputed equals kept, an audit finds nothing, and a second
    session finds it compiled."""
    worker = compiling_worker(tmp_path, graphs_kept=4)
    state, words = settled(worker, within_s=900)
    assert state == "on", words
    plain = opened(0, [2, 2], graphs_kept=4)
    _, (ours, *_) = worker.call(Forward(step=0, microbatch=0), tokens_of(0))
    _, (theirs, *_) = plain.call(Forward(step=0, microbatch=0), tokens_of(0))
    out = worker.replica.wire
    ones = out.boundary_out(torch.randn(out.boundary_shape), "backward")
    worker.call(Backward(step=0, microbatch=0), bytes(ones))
    plain.call(Backward(step=0, microbatch=0), bytes(ones))
    kept = worker.replica.gradient_sum.clone()
    assert relative_error(kept, plain.replica.gradient_sum) < 1e-5
    again = compiling_worker(tmp_path, graphs_kept=0)
    assert told(again)[0] == "on"  # at once, by what the first has compiled
    again.call(Forward(step=0, microbatch=0, keep_graph=False), tokens_of(0))
    reply, _ = again.call(Backward(step=0, microbatch=0), bytes(ones), tokens_of(0))
    assert reply.recomputed
    assert torch.equal(again.replica.gradient_sum, kept)
    assert "runner" in vars(twin(worker.replica.module))
    assert worker.replica.module.runner is not run_block
    plain.call(KeepVersion(step=0))
    found, _ = plain.call(Recompute(step=0, microbatch=0), bytes(ones), tokens_of(0), ours)
    assert found.activation < 1e-5
    assert (
        relative_error(
            torch.frombuffer(bytearray(ours)[64:], dtype=torch.float32),
            torch.frombuffer(bytearray(theirs)[64:], dtype=torch.float32),
        )
        < 1e-5
    )
