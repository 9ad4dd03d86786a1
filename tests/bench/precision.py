"""What passes in bf16 cost: held-out loss and time beside fp32, nanoGPT's shape for a CPU.

    python -m tests.bench.precision TEXT [--steps 500] [--seeds 3] [--record]

The reference trainer on bytes with one thread; parameters and updates are fp32 in both. That a
swarm makes the same losses is shown by `tests/sim/test_sim_exactness.py`.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from model_zoo.datasets.build import build
from model_zoo.datasets.corpus import TokenCorpus
from model_zoo.datasets.folder import open_folder
from model_zoo.reference import TrainingPlan, evaluate, train_reference
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.optimizer import OptimizerSpec
from model_zoo.specs.precision import Precision
from model_zoo.whole import load_whole
from tests.bench import figures as page

COMMAND = "python -m tests.bench.precision TEXT"
MEASURES = ("model_zoo/reference.py", "model_zoo/stages.py", "model_zoo/specs/precision.py")
BATCH, CONTEXT, BATCHES = 12, 64, 40
SPEC = ModelSpec(
    architecture="gpt",
    layers=4,
    width=128,
    heads=4,
    kv_heads=4,
    ffn_width=512,
    vocab=256,
    context=CONTEXT,
)


def run(corpus: TokenCorpus, precision: Precision, steps: int, seed: int) -> tuple[float, float]:
    """Train; return the held-out loss in nats per byte, and the seconds."""
    optimizer = OptimizerSpec(1e-3, 1e-4, warmup_steps=50, decay_steps=steps, beta2=0.99)
    plan = TrainingPlan(SPEC, (SPEC.layers,), optimizer, seed, steps, 1, BATCH)
    began = time.monotonic()
    made = train_reference(replace(plan, precision=precision), corpus, threads=1)
    taken = time.monotonic() - began
    model = load_whole(SPEC, made.state)
    loss = evaluate(model, corpus, batches=BATCHES, sequences=BATCH, context=CONTEXT)
    return loss, taken


def main() -> None:
    """Measure, print, and record if asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("text", type=Path, help="text to learn, such as tinyshakespeare.txt")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--seeds", type=int, default=3)
    page.add_record_flag(parser)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        made = build([asked.text], Path(folder) / "bytes")
        corpus = TokenCorpus.from_folder(open_folder(made.path))
        pairs = [
            (run(corpus, "fp32", asked.steps, seed), run(corpus, "bf16", asked.steps, seed))
            for seed in range(asked.seeds)
        ]
    costs = sorted(100 * (low[0] / full[0] - 1) for full, low in pairs)
    times = statistics.median(low[1] / full[1] for full, low in pairs)
    what = f"passes in bf16, {asked.steps} steps of nanoGPT's CPU shape: held-out loss against fp32"
    value = f"**{statistics.mean(costs):+.2f} %**; {times:.1f} x the time of fp32 on this processor"
    spread = f"{costs[0]:+.2f} to {costs[-1]:+.2f} %, {asked.seeds} seeds"
    print(f"{what}: {value} ({spread})")
    if asked.record:
        page.record([page.figure("learning", what, value, spread, COMMAND, MEASURES)])


if __name__ == "__main__":
    main()
