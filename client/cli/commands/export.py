"""``volunteer export``: the newest model in the layout that Hugging Face ``transformers`` loads."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from msgspec import Struct

from client.cli.reach.home import find_home
from client.cli.reach.passphrase import unlock
from client.cli.reach.target import find_swarm
from client.cli.terminal.output import print_json, say
from client.cli.terminal.parameters import AsJson
from client.errors import ExitCode, UserError
from client.store.texts import TextStore

FILES = ("config.json", "model.safetensors")
NO_TEXT = "not measured: this machine does not have the swarm's text; give it with --data FILE"


class Exported(Struct, frozen=True):
    """Answer of ``volunteer export --json``."""

    swarm: str
    version: int
    folder: str
    held_out_loss: float | None
    """Nats per token; None where the swarm's text is not at hand."""
    schema_version: int = 1


def export(
    *,
    out: Annotated[Path, Parameter(name=("--out", "-o"))],
    swarm: str | None = None,
    checkpoint: tuple[Path, ...] = (),
    data: Path | None = None,
    force: bool = False,
    json: AsJson = False,
) -> None:
    """Save the model in the layout that Hugging Face transformers loads.

    Parameters
    ----------
    out
        Folder to write config.json and model.safetensors to.
    swarm
        Name, id, invite or .swarm file (default: the only swarm known here).
    checkpoint
        Folder with checkpoints; may be repeated (default: this volunteer's own, else the swarm's).
    data
        The swarm's training text, to measure the held-out loss with (default: the one kept here).
    force
        Replace a model that is there.
    """
    home = find_home()
    found = find_swarm(home, swarm)
    there = [name for name in FILES if (out / name).exists()]
    if there and not force:
        problem = f"{out} already has a {' and a '.join(there)}"
        raise UserError(problem, "choose another --out, or --force", ExitCode.USAGE)

    from client.cli.models.model_source import held_out_loss, open_corpus
    from client.cli.models.newest import newest_model
    from model_zoo.export import export_hf  # torch: when all else is in order

    unlock(home.folders.data)
    trained = newest_model(home, found, checkpoint)
    try:
        folder = export_hf(trained.manifest.model, trained.state, out)
    except OSError as error:
        raise UserError(f"cannot write {out}: {error.strerror}", "choose another --out") from error
    corpus = open_corpus(trained.manifest, data, TextStore(home.folders.texts))
    loss = held_out_loss(trained, corpus) if corpus else None
    if json:
        print_json(Exported(trained.swarm, trained.version, str(folder), loss))
        return
    say(f"{trained.manifest.name}, version {trained.version} of {trained.manifest.steps}")
    say("held-out loss: " + (f"{loss:.4f}" if loss is not None else NO_TEXT))
    print(folder)
