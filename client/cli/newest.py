"""Where ``sample`` and ``export`` get the model from: folders on disk, else the swarm itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from client.cli.home import Home
from client.cli.model_source import Trained, load_newest
from protocol.invite import SwarmFile


def newest_model(home: Home, swarm: SwarmFile, folders: Sequence[Path]) -> Trained:
    """Return the newest whole model: from ``folders``, or from this volunteer's checkpoints.

    Raises:
        UserError: no version is whole there.
    """
    return load_newest(swarm, folders or [home.folders.checkpoints(swarm.swarm)])
