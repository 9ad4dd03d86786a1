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
from client.cli.terminal.output import print_json, say
from client.cli.terminal.parameters import AsJson
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


def eval(
    *,
    text: Path,
    swarm: str | None = None,
    checkpoint: tuple[Path, ...] = (),
    device: str = "cpu",
    json: AsJson = False,
) -> None:
    """Measure the newest model on a text: perplexity and bits per byte.

    Parameters
    ----------
    text
        File to measure on: text, .jsonl, .parquet, .gz or .zst.
    swarm
        Name, id, invite or .swarm file (default: the only swarm known here).
    checkpoint
        Folder with checkpoints; may be repeated (default: this volunteer's own, else the swarm's).
    device
        Where to compute: cpu, cuda:0 or mps.
    """
    home = find_home()
    found = find_swarm(home, swarm)

    from client.cli.models.newest import newest_model

    chosen = _device(device)
    trained = newest_model(home, found, checkpoint)
    answer = _measured(trained, text, chosen)
    if json:
        print_json(answer)
        return
    say(f"{trained.manifest.name}, version {trained.version} of {trained.steps}")
    print(f"tokens         {answer.tokens:,}")
    print(f"loss           {answer.loss:.4f} nats a token")
    print(f"perplexity     {answer.perplexity:.4f}")
    print(f"bits per byte  {answer.bits_per_byte:.4f}")


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
