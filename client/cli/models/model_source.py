"""Finds a swarm's newest complete model on disk, verifies and assembles it. Imports torch.

A version counts when every stage has a checkpoint of it. Checkpoints may lie in several folders,
such as those of several volunteers on one machine. Nothing is written.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from client.compute.checkpoint import CheckpointInfo, read_tensors, verify
from client.compute.errors import CheckpointError
from client.compute.replica import host_bytes
from client.compute.samples import find_kept
from client.errors import ExitCode, UserError
from client.store.checkpoints import CheckpointFolder
from client.store.texts import TextStore
from model_zoo.data import BUILT_IN, Corpus, DataError
from model_zoo.models.family import State
from model_zoo.reference import evaluate
from model_zoo.stages import Stage
from model_zoo.whole import load_whole
from protocol.ids import SwarmId
from protocol.invite import SwarmFile
from protocol.manifest import Manifest

HELD_OUT_BATCHES = 16
HELD_OUT_SEQUENCES = 8

Places = Mapping[int, Mapping[int, list[Path]]]
"""Files by version and stage."""


@dataclass(frozen=True)
class Trained:
    """A complete model at one version."""

    swarm: SwarmId
    manifest: Manifest
    version: int
    state: State
    model: Stage
    """Tokens (B, T) to logits (B, T, V)."""


def load_newest(swarm: SwarmFile, folders: Sequence[Path]) -> Trained:
    """Return the newest complete, undamaged model in the folders.

    Raises:
        UserError: there is none; lists the versions found.
    """
    places = find_places(folders)
    for version in sorted(places, reverse=True):
        try:
            return _assemble(swarm, version, places[version])
        except CheckpointError:
            continue  # a stage lacks this version: an older one may be complete
    raise UserError(
        f"no version of which every stage has a sound checkpoint ({_inventory(places)})",
        "pass the folders of all stages with --checkpoint, or wait for the next checkpoint",
        ExitCode.TEMPORARY,
    )


def _assemble(swarm: SwarmFile, version: int, files: Mapping[int, Sequence[Path]]) -> Trained:
    stages = range(swarm.manifest.stage_count)
    state = {}
    for stage in stages:
        state.update(_read_first(files.get(stage, []), swarm, stage, version))
    try:
        model = load_whole(swarm.manifest.model, state)
    except ValueError as error:
        raise CheckpointError(f"version {version} does not fit the manifest: {error}") from error
    return Trained(swarm.swarm, swarm.manifest, version, state, model)


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
        try:
            info = verify(path)
        except CheckpointError:
            continue
        if (info.swarm, info.stage, info.version) == (swarm.swarm, stage, version):
            return read_parameters(path, info)
    raise CheckpointError(f"no sound checkpoint of stage {stage} at version {version}")


def read_parameters(path: Path, info: CheckpointInfo) -> State:
    """Return only the parameters of a verified checkpoint, by name."""
    state = {name: torch.empty(shape) for name, shape in info.layout}
    read_tensors(path, info, [host_bytes(tensor.view(-1)) for tensor in state.values()])
    return state


def _inventory(places: Places) -> str:
    if not places:
        return "there is no checkpoint"
    newest = sorted(places, reverse=True)[:3]
    found = (f"version {v} of stages {', '.join(map(str, sorted(places[v])))}" for v in newest)
    return "there is " + "; ".join(found)


def open_corpus(
    manifest: Manifest, data: Path | None, store: TextStore | None = None
) -> Corpus | None:
    """Return the swarm's own text, None where this machine does not have it: neither in ``data``,
    nor in the ``store`` of texts, nor as Python's own source.

    Args:
        manifest: of the swarm; names the text's digest.
        data: path of the text; None: not given.
        store: texts kept by this volunteer.
    """
    if data is None and store is not None and (kept := _kept(manifest, store)) is not None:
        return kept
    source = str(data) if data else BUILT_IN if manifest.data.source == "stdlib" else None
    if source is None:
        return None
    try:
        corpus = Corpus.open(source, manifest.data.tokenizer_name)
    except DataError as error:
        raise UserError(str(error), "choose another --data", ExitCode.CONFIG) from error
    return corpus if corpus.digest == manifest.data.digest else None


def _kept(manifest: Manifest, store: TextStore) -> Corpus | None:
    """Return the text as a founder or a volunteer of stage 0 keeps it here."""
    digest, tokenizer = manifest.data.digest, manifest.data.tokenizer_name
    if (kept := find_kept(store.path(digest), digest, tokenizer)) is not None:
        return kept
    if (origin := store.origin(digest)) is not None:
        with suppress(DataError):
            corpus = Corpus.open(str(origin), tokenizer)
            if corpus.digest == digest:
                return corpus
    return None


def held_out_loss(trained: Trained, corpus: Corpus) -> float:
    """Return the mean loss per token, in nats, on held-out text."""
    return evaluate(
        trained.model,
        corpus,
        batches=HELD_OUT_BATCHES,
        sequences=HELD_OUT_SEQUENCES,
        context=trained.manifest.model.context,
    )
