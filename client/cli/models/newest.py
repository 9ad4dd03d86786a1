"""Gets the model for ``sample`` and ``export``: from checkpoints on disk, else from the swarm."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import trio

from client.cli.models.model_source import Trained, load_newest
from client.cli.reach.home import Home
from client.cli.terminal.output import say
from client.errors import ExitCode, UserError
from client.node.gather import gather
from protocol.invite import SwarmFile, Target


def newest_model(home: Home, target: Target, folders: Sequence[Path]) -> Trained:
    """Return the newest complete model: from ``folders``, else this volunteer's, else the swarm's.

    Raises:
        UserError: no version is complete anywhere, or nobody answers.
    """
    if folders:
        return load_newest(_with_manifest(target), folders)
    if isinstance(target, SwarmFile):
        try:
            return load_newest(target, [home.folders.checkpoints(target.swarm)])
        except UserError:
            say("this volunteer does not hold every stage; asking the swarm")
    return _from_the_swarm(target, home.settings.dial_timeout_s)


def _with_manifest(target: Target) -> SwarmFile:
    if isinstance(target, SwarmFile):
        return target
    raise UserError(
        "checkpoints do not contain the shape of their model",
        "pass the .swarm file with --swarm, or join the swarm once",
        ExitCode.USAGE,
    )


def _from_the_swarm(target: Target, dial_timeout_s: float) -> Trained:
    with tempfile.TemporaryDirectory(prefix="volunteer-") as folder:

        async def fetch() -> SwarmFile:
            swarm, _ = await gather(target, Path(folder), dial_timeout_s=dial_timeout_s, say=say)
            return swarm

        return load_newest(trio.run(fetch), [Path(folder)])
