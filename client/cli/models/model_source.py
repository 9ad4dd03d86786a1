"""Finds a swarm's newest complete model on disk, verifies and assembles it. Imports torch.

A version counts when every stage has a checkpoint of it. Checkpoints may lie in several folders,
such as those of several volunteers on one machine. Nothing is written.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from client.compute.checkpoint import reading, sound
from client.compute.errors import CheckpointError
from client.compute.replica import host_bytes
from client.compute.starting import read_start
from client.control.snapshot import AmendmentView
from client.errors import ExitCode, UserError
from client.store.checkpoints import CheckpointFolder
from client.store.texts import TextStore
from model_zoo.data import DataError
from model_zoo.datasets.folder import checked_tokenizer
from model_zoo.huggingface.adapters import merge_adapters
from model_zoo.models.family import State
from model_zoo.specs.data import DataSpec
from model_zoo.specs.shards import TOKENIZER
from model_zoo.specs.slices import slices, stage_tensors, whole_slice
from model_zoo.stages import Stage, load_whole
from model_zoo.tokenizers.bpe import Bpe
from protocol.ids import SwarmId
from protocol.invite import SwarmFile
from protocol.manifest import Manifest

Places = Mapping[int, Mapping[int, list[Path]]]
"""Files by version and stage."""


@dataclass(frozen=True)
class Trained:
    """A complete model at one version."""

    swarm: SwarmId
    manifest: Manifest
    version: int
    state: State
    """What was trained: all parameters, or the adapters."""
    model: Stage | None
    """Tokens (B, T) to logits (B, T, V), adapters merged; None where what is frozen beside them is
    not on this machine."""
    tokenizer: Bpe | None = None
    """What made the tokens, if it is at hand; None as well where tokens are bytes."""
    amendments: Sequence[AmendmentView] = ()
    """What the founder has changed in the run, as far as this machine knows."""

    @property
    def steps(self) -> int:
        """Steps of the whole run."""
        return self.amendments[-1].steps if self.amendments else self.manifest.steps


def load_newest(
    swarm: SwarmFile, folders: Sequence[Path], store: TextStore | None = None
) -> Trained:
    """Return the newest complete, undamaged model in the folders.

    Args:
        swarm: its manifest has the model.
        folders: with checkpoints.
        store: may have what is frozen beside adapters.

    Raises:
        UserError: there is none; lists the versions found.
    """
    places = find_places(folders)
    for version in sorted(places, reverse=True):
        try:
            return _assemble(swarm, version, places[version], store)
        except CheckpointError:
            continue  # a stage lacks this version: an older one may be complete
    raise UserError(
        f"no version of which every stage has a sound checkpoint ({_inventory(places)})",
        "pass the folders of all stages with --checkpoint, or wait for the next checkpoint",
        ExitCode.TEMPORARY,
    )


def _assemble(
    swarm: SwarmFile, version: int, files: Mapping[int, Sequence[Path]], store: TextStore | None
) -> Trained:
    stages = range(swarm.manifest.stage_count)
    state = {}
    for stage in stages:
        state.update(_read_first(files.get(stage, []), swarm, stage, version))
    spec, merged = swarm.manifest.model, state
    if spec.lora is not None:
        expected = stage_tensors(spec, whole_slice(spec))
        if {name: tuple(tensor.shape) for name, tensor in state.items()} != expected:
            raise CheckpointError(f"version {version} does not fit the manifest")
        base = read_base(swarm.manifest, store)
        if base is None:
            return Trained(swarm.swarm, swarm.manifest, version, state, None)
        merged = merge_adapters(spec, base, state)
    try:
        model = load_whole(spec.base, merged)
    except ValueError as error:
        raise CheckpointError(f"version {version} does not fit the manifest: {error}") from error
    return Trained(swarm.swarm, swarm.manifest, version, state, model)


def read_base(manifest: Manifest, store: TextStore | None) -> State | None:
    """Return what is frozen beside the adapters of all stages; None where some of it is not here.

    ``manifest`` names the files, ``store`` may have them.
    """
    if store is None or not manifest.start:
        return None
    base: State = {}
    try:
        for part, start in zip(slices(manifest.layers_per_stage), manifest.start, strict=True):
            base |= read_start(store.path(start.digest), manifest.model, part, start.digest)
    except CheckpointError:
        return None
    return base


def needed_model(trained: Trained) -> Stage:
    """Return the whole model.

    Raises:
        UserError: it was trained as adapters, and not all that is frozen beside them is here.
    """
    if trained.model is None:
        raise UserError(
            "this machine does not have the frozen weights of every stage",
            "do it where the swarm was founded, or export the adapter and load it beside its base "
            "with peft",
            ExitCode.TEMPORARY,
        )
    return trained.model


def find_places(folders: Iterable[Path]) -> Places:
    """Return the checkpoint files of all folders by version and stage."""
    places: dict[int, dict[int, list[Path]]] = defaultdict(lambda: defaultdict(list))
    for folder in folders:
        for entry in CheckpointFolder(folder).entries():
            places[entry.version][entry.stage].append(entry.path)
    return places


def _read_first(paths: Iterable[Path], swarm: SwarmFile, stage: int, version: int) -> State:
    """Return the parameters from the first valid file."""
    for path in paths:
        with suppress(CheckpointError), reading(path) as file:
            info, _ = sound(file, path)
            if (info.swarm, info.stage, info.version) == (swarm.swarm, stage, version):
                state = {name: torch.empty(shape) for name, shape in info.layout}
                file.seek(info.data_start)
                for tensor in state.values():
                    file.readinto(host_bytes(tensor.view(-1)))  # type: ignore[attr-defined]
                return state
    raise CheckpointError(f"no sound checkpoint of stage {stage} at version {version}")


def _inventory(places: Places) -> str:
    if not places:
        return "there is no checkpoint"
    newest = sorted(places, reverse=True)[:3]
    found = (f"version {v} of stages {', '.join(map(str, sorted(places[v])))}" for v in newest)
    return "there is " + "; ".join(found)


def read_tokenizer(path: Path, spec: DataSpec) -> Bpe | None:
    """Return the tokenizer of a swarm's tokens; None where it is not there, or tokens are bytes."""
    with suppress(DataError, OSError):
        if (brought := spec.tokenizer) is not None:
            return checked_tokenizer(path.read_bytes(), brought, str(path))
    return None


def kept_tokenizer(manifest: Manifest, store: TextStore) -> Bpe | None:
    """Return the tokenizer that a volunteer of the first stage keeps here."""
    data = manifest.data
    origin = store.origin(data.digest)
    folders = [store.tokens(data.digest), *([] if origin is None else [origin])]
    paths = (store.tokenizer(data.digest), *(folder / TOKENIZER for folder in folders))
    return next(filter(None, (read_tokenizer(path, data) for path in paths)), None)
