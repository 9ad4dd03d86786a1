"""One rank of the same training in PyTorch's own pipeline: Schedule1F1B over gloo, a stage each.

    python -m tests.bench.rivals.one_f_one_b MANIFEST RANK STORE

The model, its cut, weights, data, learning rate, clipping and AdamW are those of the reference
trainer. Prints a line of JSON: the moments at which steps ended, in monotonic seconds, and, on the
last rank, the losses.
"""

import json
import sys
import time
from pathlib import Path

import msgspec
import torch
from torch import Tensor
from torch.distributed import destroy_process_group, init_process_group
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from client.lab import reference
from model_zoo.datasets.corpus import Corpus
from model_zoo.specs.optimizer import learning_rate
from model_zoo.specs.slices import slices
from model_zoo.stages import build_stage, summed_loss
from protocol.manifest import Manifest
from tests.support.texts import corpus_of


def main() -> None:
    """Train and print."""
    manifest_path, rank_text, store = sys.argv[1:]
    rank = int(rank_text)
    manifest = msgspec.json.decode(Path(manifest_path).read_bytes(), type=Manifest)
    torch.set_num_threads(1)
    init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    moments, losses = train(manifest, rank)
    destroy_process_group()
    print(json.dumps({"moments": moments, "losses": losses}), flush=True)


def train(manifest: Manifest, rank: int) -> tuple[list[float], list[float]]:
    """Train a stage; return when steps ended and, at the last stage, their losses per token."""
    corpus = corpus_of("stdlib")
    part = slices(manifest.layers_per_stage)[rank]
    module = build_stage(manifest.model, part, manifest.seed)
    groups: list[list[torch.nn.Parameter]] = [[] for _ in manifest.layers_per_stage]
    groups[rank] = list(module.parameters())  # the others' are in other processes
    optimizer = reference.twin_of(manifest.optimizer, manifest.model, [module])
    stage = PipelineStage(module, rank, part.count, torch.device("cpu"))
    # The loss is a sum and divided by the step's tokens once, as in the reference trainer.
    schedule = Schedule1F1B(stage, manifest.microbatches_per_step, summed_loss, scale_grads=False)
    moments, losses = [time.monotonic()], []
    for step in range(manifest.steps):
        inputs, targets = step_data(manifest, corpus, step)  # (M B, T) each
        if rank == 0:
            schedule.step(inputs, return_outputs=False)
        else:
            found: list[Tensor] = []
            schedule.step(target=targets, losses=found, return_outputs=False)
            losses.append(sum(loss.item() for loss in found) / manifest.tokens_per_step)
        reference.make_mean(groups, manifest.tokens_per_step, manifest.optimizer)
        reference.apply(optimizer, learning_rate(manifest.optimizer, step))
        moments.append(time.monotonic())
    return moments, losses


def step_data(manifest: Manifest, corpus: Corpus, step: int) -> tuple[Tensor, Tensor]:
    """Return inputs and targets of a step's microbatches, one below the other."""
    rows = manifest.sequences_per_microbatch
    pairs = [
        reference._split(corpus.sample(m, rows, manifest.model.context, manifest.seed))
        for m in reference.microbatches_of(manifest, step)
    ]
    inputs, targets, _ = zip(*pairs, strict=True)
    return torch.cat(inputs), torch.cat(targets)


if __name__ == "__main__":
    main()
