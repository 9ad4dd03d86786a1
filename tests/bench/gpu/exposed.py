"""What boundaries add to a middle stage's microbatches."""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import msgspec
from torch import Tensor

from client.compute.requests import Failed, Probe
from client.compute.worker import copy_beside
from protocol.pipeline.effects import BackwardTask, ForwardTask
from tests.bench.gpu.breakdown import breakdown
from tests.bench.gpu.steps import payloads
from tests.bench.gpu.work import CALL_S, Found, Work, sync, work
from tests.support.compute_stages import LocalWorker


def exposed(asked: argparse.Namespace) -> Found:
    """Time microbatches of a middle stage: nothing sent, sent at once, and beside the next task."""
    spec = work("gpt2", small=asked.small)
    third = max(1, spec.spec.layers // 3)
    deep = msgspec.structs.replace(spec.spec, layers=3 * third)
    one = Work(deep, (third, third, third), 1, spec.sequences, 16)
    seconds: dict[str, list[float]] = {"nothing sent": [], "at once": [], "beside": []}
    workers = {}
    for way in seconds:
        worker = workers[way] = LocalWorker(departs=way == "beside", limit_s=CALL_S)
        worker.call(one.opening(asked.device))
    given, gradient = payloads(workers["at once"], one)
    made = {"forward": memoryview(given), "backward": memoryview(gradient)}
    for _ in range(asked.turns + 1):
        for way, worker in workers.items():
            sent = made if way == "nothing sent" else {}
            seconds[way].append(_pipelined(worker, one, asked, (given, gradient), sent))
    middle = {way: statistics.median(turns[1:]) for way, turns in seconds.items()}
    sending = middle["at once"] - middle["nothing sent"]
    return {
        "ms": {way: 1e3 * each for way, each in middle.items()},
        "all_ms": {way: [1e3 * each for each in turns] for way, turns in seconds.items()},
        "hidden": 1 - (middle["beside"] - middle["nothing sent"]) / sending,
        "parts_ms": breakdown(workers["at once"], one, asked),
    }


def _pipelined(
    worker: LocalWorker,
    one: Work,
    asked: argparse.Namespace,
    payloads: tuple[bytes, bytes],
    made: dict[str, memoryview],
) -> float:
    """Return seconds of a microbatch where requests do not wait for answers; ``made``: what is
    answered in place of what would be encoded, by direction."""
    answers: list[int] = []
    ring = memoryview(bytearray(64 << 20))
    given, gradient = payloads
    wire = worker.replica.wire

    def answer(reply: Any, sent: Any) -> None:
        if isinstance(reply, Failed):
            raise SystemExit(reply.message)
        for payload in sent:  # as to the memory that is shared with the node
            copy_beside(ring[: len(payload)], payload)
        answers.append(len(sent))

    def nothing(tensor: Tensor, direction: Any, *_: Any) -> memoryview:
        return made[direction]

    class Silent(type(wire)):  # type: ignore[misc]
        boundary_out = staticmethod(nothing)

    if made:
        worker.replica.wire = Silent(**{name: getattr(wire, name) for name in wire.__slots__})
    sync(asked.device)
    began = time.perf_counter()
    for number in range(one.microbatches):
        named: Any = {"step": worker.replica.version, "microbatch": number}
        worker.executor.execute(ForwardTask(**named), [given], answer)
        worker.executor.execute(BackwardTask(**named), [gradient, given], answer)
    worker.executor.execute(
        Probe(sizes=[], device=asked.device), [], answer
    )  # answered after all others
    sync(asked.device)
    taken = time.perf_counter() - began
    if len(answers) != 2 * one.microbatches + 1:
        raise SystemExit(f"{len(answers)} answers")
    worker.replica.wire = wire
    worker.replica.at(worker.replica.version).clear()
    return taken / one.microbatches
