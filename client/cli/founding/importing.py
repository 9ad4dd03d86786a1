"""Opens a Hugging Face folder for ``create --from``, and keeps what its stages begin with."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Literal

from client.cli.founding.options import ModelChoices, RunChoices, usage
from client.cli.founding.presets import PRESETS
from client.compute.errors import DiskError
from client.errors import ExitCode, UserError
from client.store.texts import TextStore
from model_zoo.datasets.folder import is_data_folder
from model_zoo.huggingface.config import to_spec
from model_zoo.huggingface.imports import Imported, open_folder
from model_zoo.huggingface.shards import FolderError, read_json
from model_zoo.huggingface.stored import tensor_shapes
from model_zoo.specs.slices import slices
from protocol.manifest import StageStart

_SHAPE = ("architecture", "layers", "width", "heads", "kv_heads", "ffn_width")
_NEXT = "give --from a folder with config.json and safetensors, as save_pretrained writes it"


@contextmanager
def imported_model(run: RunChoices, choices: ModelChoices) -> Iterator[Imported | None]:
    """Open the model of ``--from``; None without it.

    Raises:
        UserError: it cannot be imported (configuration), or other flags contradict it (usage).
    """
    if run.source is None:
        yield None
        return
    if given := [name for name in _SHAPE if getattr(choices, name) is not None]:
        flags = " and ".join(f"--{name.replace('_', '-')}" for name in given)
        raise usage(f"the folder of --from says what {flags} would change", f"leave out {flags}")

    folder = run.source.expanduser()
    context, alone = _context(folder, run, choices), run.stages == 1
    try:
        with open_folder(folder, context, tied=alone) as imported:
            yield imported
    except FolderError as error:
        raise UserError(str(error), _NEXT, ExitCode.CONFIG) from error


def _context(folder: Path, run: RunChoices, choices: ModelChoices) -> int | None:
    """The longest sequence: as chosen, else the preset's if the model can be trained on less than
    its own.

    Raises:
        UserError: the model cannot be trained on what is chosen.
    """
    try:
        config = read_json(folder / "config.json")
        own = to_spec(config)
    except (ValueError, TypeError):
        return None  # `open_folder` says what is wrong
    if choices.context is None:
        usual = PRESETS[run.preset].model.context
        return None if own.facts.learned_positions else min(own.context, usual)
    try:
        return to_spec(config, choices.context).context
    except ValueError as error:
        fits = "leave --context out"
        if not own.facts.learned_positions:
            fits = f"choose a --context of {own.context} or less, or leave it out"
        raise usage(f"{folder}: {error}", fits) from error


def with_own_tokenizer(run: RunChoices) -> RunChoices:
    """Return the choices with the tokenizer of the folder of ``--from``, if it has one, none is
    chosen, and the text is still to be made tokens of."""
    has_tokens = is_data_folder(Path(run.data).expanduser())
    if run.source is None or run.tokenizer is not None or has_tokens:
        return run
    folder = run.source.expanduser()
    there = (folder / "tokenizer.json").is_file()
    return replace(run, tokenizer=str(folder)) if there else run


def check_vocabulary(imported: Imported, vocab: int, *, brought: bool) -> None:
    """Check that the text's tokens can be the model's.

    Args:
        imported: the opened model.
        vocab: number of tokens of the text's tokenizer.
        brought: whether that is a file, and not bytes; then an embedding may have rows to spare.

    Raises:
        UserError: they cannot.
    """
    own = imported.spec.vocab
    if vocab == own or (brought and vocab < own):
        return
    raise UserError(
        f"the model has a vocabulary of {own:,} tokens and the tokenizer of the text has {vocab:,}",
        "take the model's own: put its tokenizer.json into the folder of --from, or name it with "
        "--tokenizer",
        ExitCode.CONFIG,
    )


def published_base(imported: Imported) -> Literal["bf16", "fp32"]:
    """Return the type in which the model's matrices can be kept without a loss."""
    shapes = tensor_shapes(imported.spec)
    types = {imported.dtype(name) for name, shape in shapes.items() if len(shape) > 1}
    return "bf16" if types == {"BF16"} else "fp32"


def keep_starts(
    imported: Imported, layers: tuple[int, ...], source: Path, store: TextStore
) -> tuple[StageStart, ...]:
    """Write what each stage begins with into the founder's store; members copy it from there.

    Args:
        imported: the opened model.
        layers: of each stage.
        source: the folder, which is remembered as the origin.
        store: the founder's.

    Raises:
        UserError: the disk has no room, or a tensor is damaged.
    """
    from client.compute.starting import NotFinite, write_start  # imports torch

    starts = []
    try:
        store.folder.mkdir(parents=True, exist_ok=True)
        for part in slices(layers):
            written = write_start(imported, part, store.path)
            store.remember(written.digest, source.expanduser().absolute())
            starts.append(StageStart(written.size_bytes, written.digest))
    except NotFinite as error:
        problem = f"{source} is damaged: {error}"
        raise UserError(problem, "download it again", ExitCode.CONFIG) from error
    except (DiskError, OSError) as error:
        next_step = f"make room for a copy of the weights in {store.folder}, or set data_dir"
        raise UserError(str(error), next_step, ExitCode.CONFIG) from error
    return tuple(starts)
