"""Save the model in the layout that Hugging Face transformers loads, or for llama.cpp.

Group: the model

$ volunteer export --out model  # the newest version
$ volunteer export --out model --gguf --dtype bf16  # one file, for llama.cpp and ollama

--gguf needs the gguf package and says how to install it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from client.cli.models.card import CARD, Facts, Library, card, facts, held_out_words
from client.cli.reach.home import find_home
from client.cli.reach.target import find_swarm
from client.cli.terminal.answer import Answer, answered
from client.cli.terminal.output import printable, say
from client.cli.terminal.parameters import Checkpoints, KnownSwarm
from client.errors import UsageError, UserError, system_errors
from client.store.atomic import write_atomic
from client.store.texts import TextStore
from model_zoo.specs.packages import load

if TYPE_CHECKING:
    from client.cli.models.model_source import Trained  # which imports torch

DType = Literal["fp32", "bf16", "fp16"]
FILES = (
    "config.json",
    "generation_config.json",
    "adapter_config.json",
    "adapter_model.safetensors",
    "model.safetensors",
    "model.safetensors.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
)
GGUF = "model.gguf"
MODELFILE = "Modelfile"


@answered
def export(
    *,
    out: Annotated[Path, Parameter(name=("--out", "-o"))],
    swarm: KnownSwarm = None,
    checkpoint: Checkpoints = (),
    merged: Annotated[bool, Parameter(negative=())] = False,
    base: str | None = None,
    dtype: DType = "fp32",
    gguf: Annotated[bool, Parameter(negative=())] = False,
    force: bool = False,
) -> Answer:
    """Save the model in the layout that Hugging Face transformers loads, or for llama.cpp.

    Args:
        out: Folder to write config.json, model.safetensors, the tokenizer and a model card to.
        merged: Where adapters were trained (create --lora): save the whole model with the adapters
            added to its weights, and not the adapter alone, which peft loads beside its base.
        base: Name of the model that the adapter belongs to, as transformers finds it (default: the
            folder of create --from, where the swarm was founded here).
        dtype: Type of the weights: bf16 and fp16 take half the room.
        gguf: Save one file, model.gguf, which llama.cpp loads, and a Modelfile with which ollama
            does.
        force: Replace a model that is there, and its README.md.
    """
    home = find_home()
    found = find_swarm(home, swarm)
    _nothing_in_the_way(out, gguf=gguf, force=force)
    if gguf:
        load("gguf")  # before a model is fetched
    from client.cli.models.newest import newest_model  # torch: when all else is in order

    trained = newest_model(home, found, checkpoint)
    library = _library(trained, merged, base, gguf)
    base = base or _base_folder(trained, TextStore(home.folders.texts))
    with _explained(out):
        folder = _save(trained, out, library, base, dtype)
    known = facts(home, trained, library)
    _write_card(out / CARD, card(known), force=force)
    where = {"swarm": trained.swarm, "version": trained.version, "folder": str(folder)}
    exported = where | {"held_out": known.held_out}
    return Answer(exported, str(folder), list(_notes(known, out)))


def _nothing_in_the_way(out: Path, *, gguf: bool, force: bool) -> None:
    """Raise ``UserError`` if the folder has a model that is not to be replaced."""
    there = [name for name in ((GGUF, MODELFILE) if gguf else FILES) if (out / name).exists()]
    if there and not force:
        problem = f"{out} already has a {' and a '.join(there)}"
        raise UsageError(problem, "choose another --out, or --force")


@contextmanager
def _explained(out: Path) -> Iterator[None]:
    """Say in a ``UserError`` what kept a model from being written to ``out``."""
    try:
        yield
    except ValueError as error:  # it has switches that no class of transformers has, or llama.cpp
        raise UserError(str(error), "volunteer sample needs no export") from error
    except OSError as error:
        known = error.strerror or f"the disk took less than it was given ({error})"
        next_step = "free space, or choose another --out"
        raise UserError(f"cannot write {out}: {known}", next_step) from error


def _notes(known: Facts, out: Path) -> Iterator[str]:
    """Say what was exported, how good it is, and what can be done with it."""
    trained = known.trained
    yield f"{trained.manifest.name}, version {trained.version} of {trained.steps}"
    yield held_out_words(known)
    if trained.manifest.data.tokenizer and trained.tokenizer is None:
        yield "note: without tokenizer.json, which no member that could be reached has"
    if known.library == "gguf":
        yield f"for ollama: ollama create NAME -f {quote(str(out / MODELFILE))}"
    yield f"to publish it on the Hugging Face Hub: hf upload USER/NAME {quote(str(out))}"


def _library(trained: Trained, merged: bool, base: str | None, gguf: bool) -> Library:
    """Return what is to load the model: peft loads adapters alone.

    Raises:
        UserError: the flags contradict each other, or what was trained.
    """
    has_adapter = trained.manifest.model.lora is not None
    for flag, given in (("--merged", merged), ("--base", base is not None)):
        if given and not has_adapter:
            problem = f"{flag} is for adapters, and {trained.manifest.name} trains all of its model"
            raise UsageError(problem, f"leave out {flag}")
    if merged and base is not None:
        raise UsageError("--base names what an adapter belongs to", "leave it out, or --merged")
    if has_adapter and gguf and not merged:
        problem = f"{trained.manifest.name} trains adapters, and llama.cpp needs the whole model"
        raise UsageError(problem, "add --merged")
    if has_adapter and not merged:
        return "peft"
    return "gguf" if gguf else "transformers"


def _base_folder(trained: Trained, store: TextStore) -> str | None:
    """Return the folder that the frozen weights came from, where the swarm was founded here."""
    if not trained.manifest.start:
        return None
    origin = store.origin(trained.manifest.start[0].digest)
    return None if origin is None else str(origin)


def _save(trained: Trained, out: Path, library: Library, base: str | None, dtype: DType) -> Path:
    """Save the model, or its adapters, which belong to ``base`` (None: unknown); return the folder,
    for llama.cpp the file.

    Raises:
        UserError: the package or the tokenizer is missing, or what is frozen beside adapters.
        ValueError: the library cannot compute or tokenize as this model does.
        OSError: the folder cannot be written.
    """
    from client.cli.models.model_source import needed_model
    from client.cli.models.newest import file_tokenizer, needed_tokenizer
    from model_zoo.export import export_hf
    from model_zoo.huggingface.adapters import export_adapters

    tokenizer = file_tokenizer(trained)
    if library == "peft":
        if base is None:
            say("note: adapter_config.json does not name the base model; --base writes it there")
        return export_adapters(trained.manifest.model, trained.state, out, base, dtype, tokenizer)
    if library == "gguf":
        needed_tokenizer(trained)
    spec, state = trained.manifest.model.base, needed_model(trained).state_dict()
    if library == "transformers":
        return export_hf(spec, state, out, tokenizer, dtype)
    from model_zoo.llama_cpp.architecture import longest
    from model_zoo.llama_cpp.writing import export_gguf

    assert tokenizer is not None  # it was needed
    path = export_gguf(spec, state, out / GGUF, tokenizer, dtype, printable(trained.manifest.name))
    modelfile = f"FROM ./{GGUF}\nPARAMETER num_ctx {longest(spec)}\n"
    write_atomic(out / MODELFILE, modelfile.encode(), 0o644)
    if longest(spec) < spec.longest:
        say(f"note: llama.cpp knows no window: the file says {longest(spec):,} tokens at most")
    if spec.architecture == "gpt" and spec.gelu == "exact":
        say("note: llama.cpp's GELU is by a tangent: its last digits differ from this model's")
    return path


def _write_card(path: Path, text: str, *, force: bool) -> None:
    """Write the model card, unless a README is there and not to be replaced."""
    if path.exists() and not force:
        say(f"note: {path} stays as it is; --force writes a model card in its place")
        return
    with system_errors(f"cannot write {path}", "choose another --out"):
        write_atomic(path, text.encode(), 0o644)
