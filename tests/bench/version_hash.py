"""How long a version's hash holds up a step, of a stage of about 1 GB.

    python -m tests.bench.version_hash [millions of parameters] [--threads 2] [--record]

One worker in this process. What it waits for the hash computed at once, as it was before, is set
against what it waits for one that is asked for and computed beside the next step's passes; and the
step's passes with and without that beside them. Medians over the steps.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from client.compute.payload import Buffer
from client.compute.replica import host_bytes
from client.compute.replies import Failed, Reply
from client.compute.requests import ApplyLocal, ForwardBackward, HashVersion
from client.compute.state_hash import earlier_hash
from tests.bench.checkpoint_stall import SEQUENCES, TOKENS, Bench
from tests.bench.figures import add_record_flag, figure, record

STEPS, MICROBATCHES = 3, 2
MEASURES = (
    "client/compute/hashing.py",
    "client/compute/state_hash.py",
    "client/compute/replica.py",
)


class Steps(Bench):
    """Steps in which something is done before the passes."""

    @property
    def replica(self) -> object:
        assert self._executor._opened is not None
        return self._executor._opened.replica

    def run(self, first: Callable[[], None]) -> tuple[float, float]:
        """Seconds that the worker was held up at first, and that the passes took."""
        begin = time.perf_counter()
        first()
        held_s = time.perf_counter() - begin
        begin = time.perf_counter()
        for microbatch in range(MICROBATCHES):
            tokens = self._tokens.tobytes()
            self._ask(ForwardBackward(step=self._step, microbatch=microbatch, tokens=tokens))
        passes_s = time.perf_counter() - begin
        self._executor.close()
        self._ask(ApplyLocal(step=self._step, tokens=MICROBATCHES * SEQUENCES * TOKENS))
        self._step += 1
        return held_s, passes_s

    def ask_for_hash(self, took: list[float]) -> None:
        """Begin to hash the version; the seconds until it is known go into the list."""
        begin, answered = time.perf_counter(), threading.Event()

        def answer(reply: Reply, _: Sequence[Buffer]) -> None:
            assert not isinstance(reply, Failed), reply
            took.append(time.perf_counter() - begin)
            answered.set()

        self._executor.execute(HashVersion(version=self._step), (), answer)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("millions", type=int, nargs="?", default=85)
    parser.add_argument("--threads", type=int, default=2)
    add_record_flag(parser)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        steps = Steps(given.millions, Path(folder))
    torch.set_num_threads(given.threads)
    state = steps.replica.state_tensors  # type: ignore[attr-defined]
    size = sum(tensor.nbytes for tensor in state)

    def at_once() -> None:
        earlier_hash(0, *map(host_bytes, state))

    took, plain, before, beside = list[float](), list[float](), [], []
    steps.run(lambda: None)
    for _ in range(STEPS):
        plain.append(steps.run(lambda: None)[1])
        before.append(steps.run(at_once)[0])
        beside.append(steps.run(lambda: steps.ask_for_hash(took)))
    held, passes = (statistics.median(column) for column in zip(*beside, strict=True))
    one = figure(
        "large models",
        f"the hash of a version of {size / 1e9:.2f} GB, {given.threads} threads",
        f"the worker goes on after **{held * 1e3:.1f} ms**; computed at once it waited "
        f"{statistics.median(before):.2f} s",
        f"known {statistics.median(took):.2f} s later; {MICROBATCHES} passes take {passes:.2f} s "
        f"beside it, {statistics.median(plain):.2f} s alone; {STEPS} steps",
        "python -m tests.bench.version_hash",
        MEASURES,
    )
    print(f"{one.what}: {one.value} ({one.spread})", flush=True)
    if given.record:
        record([one])


if __name__ == "__main__":
    main()
