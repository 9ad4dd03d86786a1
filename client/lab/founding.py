"""Founds the swarms of labs. All of their volunteers have the training data, beside the swarm file:
they are about other things than fetching them."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

from client.cli.founding.manifest import Founding, found_swarm
from client.cli.founding.options import ModelChoices, OptimizerChoices, RunChoices
from client.cli.founding.tokenizing import tokenized
from client.lab.local_swarm import DATA
from protocol.ids import PeerId


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
    return found_swarm(founder, replace(chosen, data=str(folder / DATA)), model, optimizer)
