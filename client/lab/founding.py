"""Founds the swarms of labs. All of their volunteers have the training data, beside the swarm file:
they are about other things than fetching them."""

import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from client.cli.commands.create import sign, write_swarm_file
from client.cli.founding.manifest import Founding, found_swarm
from client.cli.founding.options import ModelChoices, OptimizerChoices, RunChoices
from client.cli.founding.tokenizing import tokenized
from client.cli.reach.home import free_port
from client.lab.local_swarm import DATA
from client.store.identity import ensure_identity
from client.store.paths import home_folders, make_private
from model_zoo.specs.aggregation import DEFAULT
from protocol.address import Address
from protocol.hosts import kind_of
from protocol.ids import PeerId
from protocol.invite import SwarmFile

HOST = "127.0.0.1"
"""On which labs of one machine listen."""


def found_lab(
    folder: Path,
    founder: PeerId,
    run: RunChoices,
    model: ModelChoices = ModelChoices(),  # noqa: B008  (frozen)
    optimizer: OptimizerChoices = OptimizerChoices(),  # noqa: B008  (frozen)
) -> Founding:
    """Return a manifest, on data that come to ``folder/DATA``."""
    with tokenized(run, folder / ".texts") as chosen:
        shutil.copytree(chosen.data, folder / DATA, copy_function=os.link, dirs_exist_ok=True)
    chosen = replace(trusting(chosen), data=str(folder / DATA))
    return found_swarm(founder, chosen, model, optimizer)


def trusting(run: RunChoices) -> RunChoices:
    """Return the choices with the exact sum and no audits, where nothing else is chosen."""
    return replace(run, aggregation=run.aggregation or DEFAULT, audit=run.audit or 0)


def write_lab(
    path: Path,
    home: Path,
    run: RunChoices,
    model: ModelChoices = ModelChoices(),  # noqa: B008  (frozen)
    optimizer: OptimizerChoices = OptimizerChoices(),  # noqa: B008  (frozen)
    *,
    hosts: Sequence[str] = (HOST,),
    port: int | None = None,
) -> SwarmFile:
    """Found a swarm and write its file, with its data beside it.

    Args:
        path: of the file.
        home: of the volunteer that founds it, and that others are to call.
        run, model, optimizer: what is founded.
        hosts: the numbers at which it can be called.
        port: at which it listens; None: one that is free on this machine.
    """
    founder = ensure_identity(make_private(home_folders(home).data))
    manifest = found_lab(path.parent, founder.peer, run, model, optimizer).manifest
    port = port or free_port(HOST)
    called = tuple(Address(kind_of(host), host, port, founder.peer) for host in hosts)
    swarm = sign(manifest, founder, called)
    write_swarm_file(path, swarm)
    return swarm
