"""Finds a swarm's newest complete model on disk, verifies and assembles it. Imports torch.

A version counts when every stage has a checkpoint of it. Checkpoints may lie in several folders,
such as those of several volunteers on one machine. Nothing is written.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from client.cli.models.held_out import HELD_OUT_BATCHES, HELD_OUT_SEQUENCES
from client.compute.checkpoint import CheckpointInfo, read_tensors, verify
from client.compute.errors import CheckpointError
from client.compute.replica import host_bytes
from client.compute.samples import find_kept, find_text
from client.compute.starting import read_start
from client.control.snapshot import AmendmentView
from client.errors import ExitCode, UserError
from client.store.checkpoints import CheckpointFolder
from client.store.leaves import DataFolder, LeafCache, WrongFolder
from client.store.texts import TextStore
from model_zoo.data import BUILT_IN, Corpus, DataError
from model_zoo.datasets.corpus import LeafCorpus
from model_zoo.datasets.folder import checked_tokenizer
from model_zoo.huggingface.adapters import merge_adapters
from model_zoo.models.family import State
from model_zoo.reference import evaluate
from model_zoo.specs.data import DataSpec
from model_zoo.specs.shards import TOKENIZER
from model_zoo.specs.slices import slices, stage_tensors, whole_slice
from model_zoo.specs.tokens import NOT_LEARNED
from model_zoo.stages import Stage
from model_zoo.tokenizers.bpe import Bpe
from model_zoo.whole import load_whole
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
    if manifest.data.source == "tokens":
        corpus = _kept_tokens(manifest.data, data, store)
        return corpus if corpus is not None and _has_held_out(corpus, manifest) else None
    if data is None and store is not None and (kept := _kept(manifest, store)) is not None:
        return kept
    source = str(data) if data else BUILT_IN if manifest.data.source == "stdlib" else None
    if source is None:
        return None
    try:
        corpus = find_text(source, manifest.data.digest)
    except DataError as error:
        raise UserError(str(error), "choose another --data", ExitCode.CONFIG) from error
    return corpus if corpus.digest == manifest.data.digest else None


def _kept(manifest: Manifest, store: TextStore) -> Corpus | None:
    """Return the text as a founder or a volunteer of stage 0 keeps it here."""
    digest = manifest.data.digest
    if (kept := find_kept(store.path(digest), digest)) is not None:
        return kept
    if (origin := store.origin(digest)) is not None:
        with suppress(DataError):
            corpus = find_text(str(origin), digest)
            if corpus.digest == digest:
                return corpus
    return None


def _kept_tokens(spec: DataSpec, given: Path | None, store: TextStore | None) -> Corpus | None:
    """Return the tokens if all of them are here, or those that are copied as they are needed; every
    leaf is proven when it is read."""
    for folder in _token_folders(spec, given, store):
        with suppress(WrongFolder, OSError):
            whole = DataFolder(folder, spec)
            tokenizer = _read_tokenizer(whole.tokenizer, spec)
            return LeafCorpus(str(folder), spec, whole.read_part, tokenizer)
    if given is None and store is not None:
        cache = LeafCache(store.leaves(spec.digest), spec)
        if not cache.empty:
            tokenizer = _read_tokenizer(store.tokenizer(spec.digest), spec)
            return LeafCorpus(str(cache.folder), spec, cache.read_part, tokenizer)
    return None


def _has_held_out(corpus: Corpus, manifest: Manifest) -> bool:
    """Whether all that `held_out_loss` reads is here: of a cache, perhaps not."""
    try:
        for batch in range(HELD_OUT_BATCHES):
            corpus.held_out_batch(batch, HELD_OUT_SEQUENCES, manifest.model.context)
    except OSError:
        return False
    return True


def _read_tokenizer(path: Path, spec: DataSpec) -> Bpe | None:
    with suppress(DataError, OSError):
        if (brought := spec.tokenizer) is not None:
            return checked_tokenizer(path.read_bytes(), brought, str(path))
    return None


def _token_folders(spec: DataSpec, given: Path | None, store: TextStore | None) -> Iterator[Path]:
    """Yield where the tokens may be."""
    if given is not None:
        yield given
    elif store is not None:
        yield store.tokens(spec.digest)
        if (origin := store.origin(spec.digest)) is not None:
            yield origin


def kept_tokenizer(manifest: Manifest, store: TextStore) -> Bpe | None:
    """Return the tokenizer that a volunteer of the first stage keeps here."""
    data = manifest.data
    folders = _token_folders(data, None, store)
    paths = (store.tokenizer(data.digest), *(folder / TOKENIZER for folder in folders))
    return next(filter(None, (_read_tokenizer(path, data) for path in paths)), None)


def bits_per_byte(trained: Trained, corpus: Corpus, loss: float) -> float:
    """Return the loss in bits per byte of the held-out text that `held_out_loss` read; of answers
    alone where only they are learned.

    Args:
        trained: the model.
        corpus: the text.
        loss: nats per token.
    """
    targets = [
        corpus.held_out_batch(batch, HELD_OUT_SEQUENCES, trained.manifest.model.context)[:, 1:]
        for batch in range(HELD_OUT_BATCHES)
    ]
    size = sum(corpus.bytes_of(rows) for rows in targets)
    learned = sum(int((rows < NOT_LEARNED).sum()) for rows in targets)
    return loss * learned / (math.log(2) * max(1, size))


def held_out_loss(trained: Trained, corpus: Corpus) -> float:
    """Return the mean loss per token, in nats, on held-out text."""
    return evaluate(
        needed_model(trained),
        corpus,
        batches=HELD_OUT_BATCHES,
        sequences=HELD_OUT_SEQUENCES,
        context=trained.manifest.model.context,
    )
