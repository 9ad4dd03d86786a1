"""Measure the newest model on a text.

Group: the model

$ volunteer eval --text book.txt  # perplexity and bits per byte

For the tasks of lm_eval, export the model and run lm_eval on the folder (see the guide).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from client.cli.founding.tokenizing import data_errors
from client.cli.reach.home import find_home
from client.cli.reach.target import find_swarm
from client.cli.terminal.answer import Answer, answered
from client.cli.terminal.output import say
from client.cli.terminal.parameters import Checkpoints, KnownSwarm
from client.errors import ExitCode, UserError

if TYPE_CHECKING:
    import torch

    from client.cli.models.model_source import Trained  # which imports torch


class Evaluated(Struct, frozen=True, kw_only=True):
    """Answer of ``volunteer eval --json``."""

    swarm: str
    version: int
    text: str
    tokens: int
    """Predicted tokens of the text."""
    loss: float
    """Nats per token."""
    perplexity: float
    bits_per_byte: float


@answered
def eval(
    *,
    text: Path,
    swarm: KnownSwarm = None,
    checkpoint: Checkpoints = (),
    device: str = "cpu",
) -> Answer:
    """Measure the newest model on a text: perplexity and bits per byte.

    Parameters
    ----------
    text
        File to measure on: text, .jsonl, .parquet, .gz or .zst.
    device
        Where to compute: cpu, cuda:0 or mps.
    """
    home = find_home()
    target = find_swarm(home, swarm)

    from client.cli.models.newest import newest_model

    chosen = _device(device)
    trained = newest_model(home, target, checkpoint)
    say(f"{trained.manifest.name}, version {trained.version} of {trained.steps}")
    found = _measured(trained, text, chosen)
    lines = (
        f"tokens         {found.tokens:,}",
        f"loss           {found.loss:.4f} nats a token",
        f"perplexity     {found.perplexity:.4f}",
        f"bits per byte  {found.bits_per_byte:.4f}",
    )
    return Answer(found, lines)


def _device(name: str) -> torch.device:
    from client.compute.device import select_device
    from client.compute.errors import ShapeError

    try:
        return select_device(name)
    except ShapeError as error:
        raise UserError(str(error), "choose another --device", ExitCode.USAGE) from error


def _measured(trained: Trained, path: Path, device: torch.device) -> Evaluated:
    from client.cli.models.model_source import needed_model
    from client.cli.models.newest import needed_tokenizer
    from model_zoo.text_loss import text_loss

    tokenizer = needed_tokenizer(trained)
    model = needed_model(trained).to(device)
    with data_errors():
        found = text_loss(model, path, tokenizer, trained.manifest.model.context)
    return Evaluated(
        swarm=trained.swarm,
        version=trained.version,
        text=str(path),
        tokens=found.tokens,
        loss=found.loss,
        perplexity=found.perplexity,
        bits_per_byte=found.bits_per_byte,
    )
