"""Boundaries leave while the next task is computed: same bytes, same order, nothing half sent."""

from collections.abc import Callable, Sequence
from threading import Event
from typing import Any

import pytest
import torch

from client.compute import device
from client.compute.lane import Lane
from client.compute.payload import Buffer, check_seal
from client.compute.requests import Failed, Probe, Reply
from protocol.pipeline.effects import BackwardTask, ForwardTask
from tests.support.compute_stages import LocalWorker, open_request, tokens_of

NOTHING = Probe(sizes=[], device="cpu")
PATIENCE_S = 60.0
Answers = list[tuple[str, Reply, list[Buffer]]]


def _opened() -> LocalWorker:
    worker = LocalWorker()
    worker.call(open_request(0, (2, 2), boundary="s8"))
    return worker


def _execute(worker: LocalWorker, answers: Answers, name: str, request: Any, *sent: Buffer) -> None:
    def answer(reply: Reply, payloads: Sequence[Buffer]) -> None:
        answers.append((name, reply, list(payloads)))

    worker.executor.execute(request, sent, answer)


def _held_up(monkeypatch: pytest.MonkeyPatch, wait: Callable[[], object]) -> None:
    """Let the bytes of a boundary be there when ``wait`` returns."""
    monkeypatch.setattr(Lane, "mark", lambda _: wait)


def test_the_next_task_is_computed_before_a_boundary_has_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worker, answers, there = _opened(), Answers(), Event()
    _held_up(monkeypatch, lambda: there.wait(PATIENCE_S))
    for number in range(2):
        _execute(
            worker, answers, f"{number}", ForwardTask(step=0, microbatch=number), tokens_of(number)
        )
    assert set(worker.replica.graphs) == {0, 1}
    assert not answers
    there.set()
    worker.executor.close()
    assert [name for name, _, _ in answers] == ["0", "1"]
    for _, _, (payload, *_) in answers:
        check_seal(payload)


def test_other_replies_wait_for_what_is_leaving(monkeypatch: pytest.MonkeyPatch) -> None:
    worker, answers, probed = _opened(), Answers(), Event()
    _held_up(monkeypatch, lambda: probed.wait(PATIENCE_S))

    def probe(request: Probe) -> Any:
        probed.set()  # only now the boundary may leave
        return real(request)

    real = device.probe
    monkeypatch.setattr(device, "probe", probe)
    _execute(worker, answers, "forward", ForwardTask(step=0, microbatch=0), tokens_of(0))
    _execute(worker, answers, "probe", NOTHING)
    assert probed.is_set()
    worker.executor.close()
    assert [name for name, _, _ in answers] == ["forward", "probe"]


def test_a_pass_that_fails_is_answered_in_its_place_and_sends_nothing() -> None:
    worker, answers = _opened(), Answers()
    _execute(worker, answers, "good", ForwardTask(step=0, microbatch=0), tokens_of(0))
    with torch.no_grad():
        worker.replica.parameters.fill_(float("nan"))
    _execute(worker, answers, "poisoned", ForwardTask(step=0, microbatch=1), tokens_of(1))
    _execute(worker, answers, "unknown", BackwardTask(step=0, microbatch=7), b"")
    worker.executor.close()
    assert [name for name, _, _ in answers] == ["good", "poisoned", "unknown"]
    assert [isinstance(reply, Failed) for _, reply, _ in answers] == [False, True, True]
    assert not answers[1][2]
    assert set(worker.replica.graphs) == {0}


def test_a_boundary_that_cannot_leave_is_answered_in_its_place_and_the_worker_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worker, answers = _opened(), Answers()

    def breaks() -> None:
        raise RuntimeError("the copy from the GPU failed")

    with monkeypatch.context() as broken:
        _held_up(broken, breaks)
        for number in range(2):
            forward = ForwardTask(step=0, microbatch=number)
            _execute(worker, answers, f"{number}", forward, tokens_of(number))
        _execute(worker, answers, "probe", NOTHING)
    _execute(worker, answers, "good", ForwardTask(step=0, microbatch=2), tokens_of(2))
    worker.executor.close()
    assert [name for name, _, _ in answers] == ["0", "1", "probe", "good"]
    for _, reply, payloads in answers[:2]:
        assert "the copy from the GPU failed" in reply.message
        assert not payloads
    assert not any(isinstance(reply, Failed) for _, reply, _ in answers[2:])
