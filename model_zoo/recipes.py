"""Training plans with published results to compare with.

`python -m model_zoo.recipes TEXT [STEPS]` trains nanoGPT's CPU recipe on a text file.
"""

import sys

from model_zoo.data import DataError
from model_zoo.datasets.corpus import open_source
from model_zoo.reference import TrainingPlan, evaluate, train_reference
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.optimizer import OptimizerSpec
from model_zoo.whole import load_whole


def nanogpt_cpu(
    layers_per_stage: tuple[int, ...] = (4,), steps: int = 2000, seed: int = 1337
) -> TrainingPlan:
    """nanoGPT's character-level recipe for CPUs; held-out loss on tinyshakespeare about 1.88.

    Source: nanoGPT, README, "I only have a macbook".

    Args:
        layers_per_stage: the cut of its four layers.
        steps: length of the run.
        seed: of weights and samples.
    """
    spec = ModelSpec("gpt", 4, 128, 4, 4, 512, context=64)
    optimizer = OptimizerSpec(
        1e-3, 1e-4, warmup_steps=100, decay_steps=2000, beta1=0.9, beta2=0.99, weight_decay=0.1
    )
    return TrainingPlan(spec, layers_per_stage, optimizer, seed, steps, 1, 12)


def main(arguments: list[str]) -> None:
    """Train the recipe on one thread; print losses and the final held-out loss."""
    if not 1 <= len(arguments) <= 2:
        sys.exit("usage: python -m model_zoo.recipes TEXT [STEPS]")
    try:
        corpus = open_source(arguments[0])
    except DataError as error:
        sys.exit(str(error))
    plan = nanogpt_cpu(steps=int(arguments[1]) if len(arguments) == 2 else 2000)
    run = train_reference(plan, corpus, threads=1, on_step=_print_some)
    model = load_whole(plan.spec, run.state)
    held_out = evaluate(model, corpus, batches=200, sequences=12, context=plan.spec.context)
    print(f"held-out loss {held_out:.4f}")


def _print_some(step: int, loss: float) -> None:
    if step % 100 == 0:
        print(f"step {step} loss {loss:.4f}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
