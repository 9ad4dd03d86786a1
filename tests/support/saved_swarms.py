"""Swarms that are founded in a test, and checkpoints of them on disk, as replicas write them."""

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from client.cli.commands.create import sign
from client.cli.founding.manifest import Founding, found_swarm
from client.cli.founding.options import ModelChoices, OptimizerChoices, RunChoices
from client.compute.checkpoint import CheckpointInfo, build_header
from client.lab.founding import trusting
from client.plan.model import Machine
from client.store.checkpoints import CheckpointFolder
from client.store.texts import TextStore
from model_zoo.export import export_hf
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.slices import slices
from model_zoo.stages import build_stage, build_whole
from protocol.address import Address
from protocol.invite import SwarmFile
from protocol.wire.envelope import Signer
from tests.support.hashes import state_hash
from tests.support.texts import folder_of

SIGNER = Signer(b"\x07" * 32)
"""The founder."""
WORDS = "the quick brown fox jumps over the lazy dog\n" * 99


def founded(
    store: TextStore | None = None,
    machine: Callable[[], Machine] | None = None,
    *,
    strangers: bool = False,
    **choices: Any,
) -> Founding:
    """A swarm with these choices of its run, model and optimizer; nothing is measured unless it is
    chosen."""
    choices = {"measure": False, **choices}
    run, model, optimizer = (
        kind(**{name: choices.pop(name) for name in names_of(kind) & choices.keys()})
        for kind in (RunChoices, ModelChoices, OptimizerChoices)
    )
    assert not choices
    run = replace(run, name=run.swarm_name, data=str(folder_of(run.data)))
    run = run if strangers else trusting(run)
    return found_swarm(SIGNER.peer, run, model, optimizer, store, machine)


def names_of(kind: type[Any]) -> set[str]:
    return {field.name for field in fields(kind)}


def little_swarm(text: Path, name: str = "little", stages: int = 2) -> SwarmFile:
    """Found a swarm that trains on a text."""
    shape = {"layers": 2, "width": 32, "heads": 2, "context": 16}
    founding = founded(name=name, data=str(text), stages=stages, **shape)
    return sign(founding.manifest, SIGNER, (Address("ip4", "127.0.0.1", 4001, SIGNER.peer),))


def llama_folder(folder: Path) -> Path:
    """Write a model as transformers saves it."""
    spec = ModelSpec("llama", 2, 32, 2, 2, 48, context=16)
    return export_hf(spec, build_whole(spec, 5).state_dict(), folder)


def lora_swarm(source: Path, text: Path, store: TextStore) -> SwarmFile:
    """Found a swarm that trains adapters of a model that is saved."""
    run = {"name": "lora", "source": source, "data": str(text), "stages": 2}
    manifest = founded(store, lora=4, lora_targets="all", **run).manifest
    return sign(manifest, SIGNER, (Address("ip4", "127.0.0.1", 4001, SIGNER.peer),))


def write_checkpoints(
    swarm: SwarmFile, folder: Path, version: int, stages: Sequence[int]
) -> list[Path]:
    """Write checkpoints as a replica does, with the weights of seed 1 and zero moments."""
    folder.mkdir(parents=True, exist_ok=True)
    spec = swarm.manifest.model
    parts = slices(swarm.manifest.layers_per_stage)
    paths = []
    for stage in stages:
        module = build_stage(spec, parts[stage], seed=1)
        state = {n: p.detach() for n, p in module.named_parameters() if p.requires_grad}
        data = b"".join(tensor.numpy().tobytes() for tensor in state.values())
        data += bytes(swarm.manifest.state.bytes_per_parameter // 4 * len(data) - len(data))
        header = build_header(
            CheckpointInfo(
                swarm=swarm.swarm,
                stage=stage,
                stages=len(parts),
                version=version,
                hash=state_hash(version, memoryview(data)),
                layout=tuple((name, tuple(tensor.shape)) for name, tensor in state.items()),
                state=swarm.manifest.state,
            )
        )
        paths.append(CheckpointFolder(folder).path(stage, version))
        paths[-1].write_bytes(header + data)
    return paths
