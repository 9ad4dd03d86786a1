"""Microbatches of many steps on one worker, numbered so that the step follows from the number."""

from typing import Any

from protocol.pipeline.effects import LossTask
from tests.support.compute_stages import SEQUENCES, TOKENS, LocalWorker, tokens_of

PER_STEP = 6
"""Microbatches of a step; n * PER_STEP is the first one of step n."""
STEP_TOKENS = PER_STEP * SEQUENCES * TOKENS


def of_step(step: int) -> range:
    return range(step * PER_STEP, (step + 1) * PER_STEP)


def loss_of(worker: LocalWorker, microbatch: int, *payloads: bytes) -> Any:
    """Run the last stage; the reply and its payloads."""
    task = LossTask(microbatch // PER_STEP, microbatch)
    return worker.call(task, *payloads, tokens_of(microbatch))
