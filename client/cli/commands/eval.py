"""``volunteer eval``: how good the newest model is, on a text or on tasks of `lm_eval`."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter, validators
from msgspec import Struct

from client.cli.founding.tokenizing import data_errors
from client.cli.models.harness import Score, command, find_harness, run
from client.cli.reach.home import find_home
from client.cli.reach.target import find_swarm
from client.cli.terminal.output import print_json, say
from client.cli.terminal.parameters import AsJson
from client.cli.terminal.table import aligned
from client.errors import ExitCode, UserError

if TYPE_CHECKING:
    import torch

    from client.cli.models.model_source import Trained  # which imports torch

Positive = Annotated[int, Parameter(validator=validators.Number(gte=1))]


class Evaluated(Struct, frozen=True, kw_only=True):
    """Answer of ``volunteer eval --json``."""

    swarm: str
    version: int
    text: str | None = None
    tokens: int | None = None
    """Predicted tokens of the text."""
    loss: float | None = None
    """Nats per token."""
    perplexity: float | None = None
    bits_per_byte: float | None = None
    scores: list[Score] = []
    schema_version: int = 1


def eval(
    *,
    text: Path | None = None,
    tasks: str | None = None,
    swarm: str | None = None,
    checkpoint: tuple[Path, ...] = (),
    limit: Positive | None = None,
    include: Path | None = None,
    python: Path | None = None,
    device: str = "cpu",
    json: AsJson = False,
) -> None:
    """Measure the newest model: on a text, or on tasks of lm_eval.

    Parameters
    ----------
    text
        File to measure perplexity and bits per byte on: text, .jsonl, .parquet, .gz or .zst.
    tasks
        Names of tasks of lm_eval, with commas between them, such as arc_easy,hellaswag. Most are
        downloaded by it.
    swarm
        Name, id, invite or .swarm file (default: the only swarm known here).
    checkpoint
        Folder with checkpoints; may be repeated (default: this volunteer's own, else the swarm's).
    limit
        With --tasks, examples of each task (default: all).
    include
        With --tasks, folder with descriptions of own tasks.
    python
        With --tasks, the interpreter of the environment that has lm_eval (default: this one).
    device
        Where to compute: cpu, cuda:0 or mps.
    """
    if (text is None) == (tasks is None):
        raise UserError(
            "give one of --text and --tasks", "see volunteer eval --help", ExitCode.USAGE
        )
    if text is not None and (limit or include or python):
        problem = "--limit, --include and --python are for --tasks"
        raise UserError(problem, "leave them out", ExitCode.USAGE)
    names = [name.strip() for name in (tasks or "").split(",") if name.strip()]
    if tasks is not None and not names:
        raise UserError("--tasks names no task", "such as --tasks arc_easy", ExitCode.USAGE)
    home = find_home()
    found = find_swarm(home, swarm)
    harness = find_harness(python) if tasks is not None else ""

    from client.cli.models.newest import newest_model

    chosen = _device(device) if text is not None else None
    trained = newest_model(home, found, checkpoint)
    if text is not None:
        answer = _on_text(trained, text, chosen)
    else:
        scores = _on_tasks(trained, harness, names, limit, include, device)
        answer = Evaluated(swarm=trained.swarm, version=trained.version, scores=scores)
    if json:
        print_json(answer)
        return
    say(f"{trained.manifest.name}, version {trained.version} of {trained.steps}")
    print("\n".join(_lines(answer)))


def _lines(answer: Evaluated) -> list[str]:
    if answer.text is not None:
        return [
            f"tokens         {answer.tokens:,}",
            f"loss           {answer.loss:.4f} nats a token",
            f"perplexity     {answer.perplexity:.4f}",
            f"bits per byte  {answer.bits_per_byte:.4f}",
        ]
    rows = [
        [one.task, one.metric, f"{one.value:.4f}", "" if one.error is None else f"{one.error:.4f}"]
        for one in answer.scores
    ]
    return list(aligned(["task", "metric", "value", "standard error"], rows))


def _device(name: str) -> torch.device:
    from client.compute.device import select_device
    from client.compute.errors import ShapeError

    try:
        return select_device(name)
    except ShapeError as error:
        raise UserError(str(error), "choose another --device", ExitCode.USAGE) from error


def _on_text(trained: Trained, path: Path, device: torch.device | None) -> Evaluated:
    from client.cli.models.model_source import needed_model
    from client.cli.models.newest import needed_tokenizer
    from model_zoo.text_loss import text_loss

    chosen = needed_tokenizer(trained)
    tokenizer = None if isinstance(chosen, str) else chosen
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


def _on_tasks(
    trained: Trained,
    harness: str,
    tasks: list[str],
    limit: int | None,
    include: Path | None,
    device: str,
) -> list[Score]:
    """Export the model to a folder that is removed afterwards, and run lm_eval on it."""
    from client.cli.models.model_source import needed_model
    from client.cli.models.newest import needed_tokenizer
    from model_zoo.export import export_hf
    from model_zoo.tokenizers.bpe import byte_tokenizer, end_token

    chosen = needed_tokenizer(trained)
    tokenizer = byte_tokenizer() if isinstance(chosen, str) else chosen
    prefix = ord("\n") if isinstance(chosen, str) else end_token(tokenizer)
    with tempfile.TemporaryDirectory(prefix="volunteer-eval-") as folder:
        model, out = Path(folder) / "model", Path(folder) / "results"
        state = needed_model(trained).state_dict()
        try:
            export_hf(trained.manifest.model.base, state, model, tokenizer)
        except OSError as error:
            raise UserError(f"cannot write {model}: {error.strerror}", "free space") from error
        except ValueError as error:  # no class of transformers has these switches
            raise UserError(str(error), "use --text") from error
        line = command(
            harness,
            model,
            tasks,
            out,
            prefix=prefix,
            limit=limit,
            include=include,
            device=device,
        )
        return run(line, out)
