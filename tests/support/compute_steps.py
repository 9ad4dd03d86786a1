"""Microbatches of many steps on one worker, numbered so that the step follows from the number."""

from typing import Any

from client.compute.requests import Apply, ForwardBackward
from tests.support.compute_stages import SEQUENCES, TOKENS, LocalWorker, tokens_of

PER_STEP = 6
"""Microbatches of a step; n * PER_STEP is the first one of step n."""
STEP_TOKENS = PER_STEP * SEQUENCES * TOKENS


def step_of(microbatch: int) -> int:
    return microbatch // PER_STEP


def of_step(step: int) -> range:
    return range(step * PER_STEP, (step + 1) * PER_STEP)


def loss_of(worker: LocalWorker, microbatch: int, *payloads: bytes) -> Any:
    """Run the last stage; the reply and its payloads."""
    step = step_of(microbatch)
    request = ForwardBackward(step=step, microbatch=microbatch, tokens=tokens_of(microbatch))
    return worker.call(request, *payloads)


def apply_local(worker: LocalWorker) -> str:
    """The stage's only replica applies its sum; the hash of the next version."""
    step = worker.replica.version
    return str(worker.call(Apply(step=step, tokens=STEP_TOKENS))[0].hash)
