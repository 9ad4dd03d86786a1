"""What boundaries add to a middle stage's microbatches."""

import argparse
import statistics
import time
from contextlib import nullcontext
from typing import Any

import msgspec
import numpy as np

from client.compute.payload import Buffer
from client.compute.requests import Failed
from protocol.pipeline.effects import ApplyTask, BackwardTask, ForwardTask
from tests.bench.gpu.breakdown import breakdown, silenced
from tests.bench.gpu.running import Found, tell
from tests.bench.gpu.work import CALL_S, Work, payloads, sync, work
from tests.support.compute_stages import LocalWorker

TURNS = 6


def exposed(asked: argparse.Namespace) -> Found:
    """Time microbatches of a middle stage: nothing sent, sent at once, and beside the next task."""
    spec = work("gpt2", small=asked.small)
    third = max(1, spec.spec.layers // 3)
    deep = msgspec.structs.replace(spec.spec, layers=3 * third)
    one = Work(deep, (third, third, third), 1, spec.sequences, 4 if asked.small else 16)
    seconds: dict[str, list[float]] = {"nothing sent": [], "at once": [], "beside": []}
    workers = {}
    for way in seconds:
        worker = workers[way] = LocalWorker(limit_s=CALL_S)
        worker.call(one.opening(asked.device))
    given, gradient = payloads(one, asked.device)
    made = {"forward": memoryview(given), "backward": memoryview(gradient)}
    for _ in range(TURNS):
        for way, worker in workers.items():
            with silenced(made) if way == "nothing sent" else nullcontext():
                seconds[way].append(
                    pipelined(worker, one, asked.device, given, gradient, waits=way == "at once")
                )
    middle = {way: statistics.median(turns[1:]) for way, turns in seconds.items()}
    sending = middle["at once"] - middle["nothing sent"]
    tell(
        asked,
        {
            "ms": {way: 1e3 * each for way, each in middle.items()},
            "all_ms": {way: [1e3 * each for each in turns] for way, turns in seconds.items()},
            "hidden": 1 - (middle["beside"] - middle["nothing sent"]) / sending,
        },
    )
    return {"step of one microbatch": breakdown(workers["at once"], one, asked)}


def pipelined(
    worker: LocalWorker,
    one: Work,
    device: str,
    given: Buffer,
    gradient: Buffer,
    *,
    waits: bool,
) -> float:
    """Return seconds of a microbatch; ``waits``: the next request waits for the answer."""
    answers: list[int] = []
    there = np.empty(64 << 20, np.uint8)

    def answer(reply: Any, sent: Any) -> None:
        if isinstance(reply, Failed):
            raise SystemExit(reply.message)
        for payload in sent:  # as to the node's socket
            np.copyto(there[: len(payload)], np.frombuffer(payload, np.uint8))
        answers.append(len(sent))

    version = worker.replica.version
    sync(device)
    began = time.perf_counter()

    def execute(request: Any, *sent: Buffer) -> None:
        worker.executor.execute(request, sent, answer)
        if waits:
            worker.executor.close()

    for number in range(one.microbatches):
        named: Any = {"step": version, "microbatch": version * one.microbatches + number}
        execute(ForwardTask(**named), given)
        execute(BackwardTask(**named), gradient, given)
    worker.executor.close()  # all are answered
    sync(device)
    taken = time.perf_counter() - began
    if len(answers) != 2 * one.microbatches:
        raise SystemExit(f"{len(answers)} answers")
    worker.call(ApplyTask(step=version))
    return taken / one.microbatches
