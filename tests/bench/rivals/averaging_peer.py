"""One of several replicas of a stage that average, each in a process of its own.

    python -m tests.bench.rivals.averaging_peer MANIFEST CORPUS INDEX HOST PEERS full|bare LINES

Seat, rounds, worker, codec, queues and network are the client's own (``seat_host``); in place of
much computing, one sequence of 16 tokens a microbatch. LINES: everybody's uplink/downlink
in bytes/s, joined by commas, or nothing. Prints its address, reads everybody's, and prints a line
of JSON per version: when its first plan came, when it began to apply and when that was done
(monotonic seconds), the attempts it took, the state's hash, and the seconds that its worker took by
task. Ends with its standard input.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import trio

from client.compute.process import WORKER_COMMAND
from client.train.stage.seat_driver import SeatDriver
from client.train.workers.tasks import Call
from protocol.manifest import Manifest
from protocol.pipeline.effects import ApplyTask, Committed, Compute, ContributeTask, Task
from protocol.seat.effects import SeatEffect
from tests.bench.rivals.seat_host import input_ended, seated

BARE_WORKER = (sys.executable, "-m", "tests.bench.rivals.bare_worker")


@dataclass
class Moments:
    """One round at this peer, from the first attempt on."""

    step: int = -1
    attempts: int = 0
    plan: float = 0.0
    apply: float = 0.0
    tasks: dict[str, float] = field(default_factory=dict)

    def begin(self, step: int) -> None:
        """Note an attempt; the clock goes on if the step had one before."""
        if step != self.step:
            self.step, self.attempts = step, 0
            self.plan, self.tasks = time.monotonic(), {}
        self.attempts += 1


now = Moments()


class TimedDriver(SeatDriver):
    """Notes when a round's tasks begin and what they cost the worker."""

    _busy_before = 0.0

    def _perform_one(self, effect: SeatEffect, parts: tuple[bytes, ...]) -> None:
        if isinstance(effect, Compute) and isinstance(effect.task, ContributeTask):
            now.begin(effect.task.step)
        elif isinstance(effect, Compute) and isinstance(effect.task, ApplyTask):
            now.apply = time.monotonic()
        super()._perform_one(effect, parts)

    def _store(self, task: Task, call: Call, payloads: list[bytes]) -> None:
        now.tasks[type(task).__name__] = self.busy_s - self._busy_before
        self._busy_before = self.busy_s
        super()._store(task, call, payloads)


def tell(committed: Committed) -> None:
    """Print what a round took."""
    said = {"version": committed.version, "hash": committed.hash, "plan": now.plan}
    said |= {"apply": now.apply, "done": time.monotonic(), "tasks": now.tasks}
    said |= {"attempts": now.attempts}
    print(json.dumps(said), flush=True)


async def run(
    manifest: Manifest,
    corpus: str,
    index: int,
    host: str,
    peers: int,
    command: tuple[str, ...],
    lines: list[tuple[float, float]],
) -> None:
    """Average until standard input ends."""
    async with seated(
        manifest,
        stage=0,
        index=index,
        seats=peers,
        host=host,
        corpus=corpus,
        command=command,
        lines=lines,
        driver_type=TimedDriver,
        committed=tell,
    ):
        await input_ended()


def main() -> None:
    """Run."""
    path, corpus, index, host, peers, kind, said = sys.argv[1:]
    manifest = msgspec.json.decode(Path(path).read_bytes(), type=Manifest)
    command = BARE_WORKER if kind == "bare" else WORKER_COMMAND
    lines = []
    for line in filter(None, said.split(",")):
        up, down = map(float, line.split("/"))
        lines.append((up, down))
    trio.run(run, manifest, corpus, int(index), host, int(peers), command, lines)


if __name__ == "__main__":
    main()
