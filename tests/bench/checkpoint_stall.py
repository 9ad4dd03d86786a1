"""Measures the delay of training by a checkpoint: the worker's own answers, with and without a
save.

``python tests/bench/checkpoint_stall.py [millions of parameters ...]`` prints one JSON line per
size: seconds that ``Save`` blocks the worker, seconds of a step (its microbatches and its apply)
without a save and with one in it, and the difference in per cent. Medians of several steps.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from client.compute.executor import Executor
from client.compute.payload import Buffer
from client.compute.replies import Failed, Reply
from client.compute.requests import ApplyLocal, ForwardBackward, OpenStage, Request, Save
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.optimizer import OptimizerSpec

MICROBATCHES, SEQUENCES, TOKENS, VOCAB, REPEATS = 16, 4, 128, 256, 5


class Bench:
    """One open stage and what was measured on it."""

    def __init__(self, millions: int, folder: Path) -> None:
        self._executor, self._folder, self._step = Executor(), folder, 0
        width = 512
        layers = max(1, round(millions * 1e6 / (12 * width * width)))
        model = ModelSpec("gpt", layers, width, 8, 8, 4 * width, TOKENS, VOCAB)
        request = OpenStage(
            swarm="ab" * 32,
            model=model,
            layers_per_stage=[layers],
            stage=0,
            seed=1,
            optimizer=OptimizerSpec(
                lr=1e-3, min_lr=1e-4, warmup_steps=1, decay_steps=100, beta2=0.95
            ),
            boundary_codec="fp32",
            averaging_codec="fp32",
            sequences=SEQUENCES,
            tokens=TOKENS,
            threads=2,
        )
        self.parameters = self._ask(request).parameters
        rng = np.random.default_rng(0)
        self._tokens = rng.integers(VOCAB, size=SEQUENCES * (TOKENS + 1), dtype=np.uint16)

    def step(self, *, save: bool) -> tuple[float, float, float]:
        """Seconds that the save blocked, that the step took, and until the file was there."""
        start = time.perf_counter()
        written = self._save() if save else None
        blocked = time.perf_counter() - start
        for microbatch in range(MICROBATCHES):
            self._ask(
                ForwardBackward(
                    step=self._step, microbatch=microbatch, tokens=self._tokens.tobytes()
                )
            )
        self._ask(ApplyLocal(step=self._step, tokens=MICROBATCHES * SEQUENCES * TOKENS))
        seconds = time.perf_counter() - start
        self._step += 1
        if written is not None:
            assert written.wait(120)
        return blocked, seconds, time.perf_counter() - start

    def _save(self) -> threading.Event:
        written = threading.Event()

        def answer(reply: Reply, _: Sequence[Buffer]) -> None:
            assert not isinstance(reply, Failed), reply
            written.set()

        path = self._folder / "stage.safetensors"
        self._executor.execute(Save(version=self._step, path=str(path)), (), answer)
        return written

    def _ask(self, request: Request[Any]) -> Any:
        answers: list[Reply] = []
        self._executor.execute(request, (), lambda reply, _: answers.append(reply))  # type: ignore[arg-type]
        assert not isinstance(answers[0], Failed), answers[0]
        return answers[0]


def measure(millions: int) -> dict[str, float]:
    """Medians over alternating steps with and without a save."""
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(millions, Path(folder))
        bench.step(save=True)
        plain, saved = [], []
        for _ in range(REPEATS):
            plain.append(bench.step(save=False)[1])
            saved.append(bench.step(save=True))
    without = statistics.median(plain)
    blocked, seconds, complete = (statistics.median(column) for column in zip(*saved, strict=True))
    return {
        "parameters": bench.parameters,
        "blocked_s": round(blocked, 4),
        "step_s": round(without, 3),
        "step_with_save_s": round(seconds, 3),
        "stall_percent": round(100 * (seconds - without) / without, 1),
        "file_complete_s": round(complete, 3),
    }


if __name__ == "__main__":
    for size in map(int, sys.argv[1:] or ("10", "25", "50")):
        print(json.dumps(measure(size)), flush=True)
