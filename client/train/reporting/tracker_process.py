"""The process that has a tracker: lines of JSON on stdin, ``run.log`` for each.

Nothing leaves this machine unless the owner's environment says so: wandb runs offline without
``WANDB_MODE``, and trackio writes to its folder without ``TRACKIO_SPACE_ID`` or
``TRACKIO_SERVER_URL``. Nothing is recorded of the machine itself.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, Final, Protocol

import msgspec
from msgspec import Struct


class Told(Struct, frozen=True):
    """One record."""

    step: int
    metrics: dict[str, float | str]


class Run(Protocol):
    """A run of either tracker."""

    def log(self, metrics: dict[str, Any], step: int | None = None) -> object:
        """Record numbers of a step."""

    def finish(self) -> object:
        """End it."""


def wandb_run(project: str, name: str, folder: str) -> Run:
    """Begin or go on with a run of wandb."""
    import wandb

    run: Run = wandb.init(
        project=project,
        name=name,
        id=name,
        resume="allow",
        dir=os.environ.get("WANDB_DIR", folder),
        mode=os.environ.get("WANDB_MODE", "offline"),
        settings=wandb.Settings(
            silent=True,
            console="off",
            x_disable_stats=True,
            x_disable_machine_info=True,
            disable_git=True,
            disable_code=True,
        ),
    )
    return Stepped(run)


class Stepped:
    """A run of wandb in which steps may be repeated, as after a roll-back: its own step only rises,
    so the step is a number like others, by which it draws."""

    def __init__(self, run: Any) -> None:
        self._run = run
        run.define_metric("*", step_metric="step")

    def log(self, metrics: dict[str, Any], step: int | None = None) -> None:
        """Record numbers of a step."""
        self._run.log({**metrics, "step": step})

    def finish(self) -> None:
        """End it."""
        self._run.finish()


def trackio_run(project: str, name: str, folder: str) -> Run:
    """Begin or go on with a run of trackio."""
    import trackio

    run: Run = trackio.init(
        project=project,
        name=name,
        resume="allow",
        embed=False,
        auto_log_cpu=False,
        auto_log_gpu=False,
    )
    return run


TRACKERS: Final[dict[str, Callable[[str, str, str], Run]]] = {
    "wandb": wandb_run,
    "trackio": trackio_run,
}


def main(kind: str, project: str, name: str, folder: str) -> None:
    """Record what stdin tells until it ends."""
    run, decoder = TRACKERS[kind](project, name, folder), msgspec.json.Decoder(Told)
    try:
        for line in sys.stdin.buffer:
            told = decoder.decode(line)
            run.log(dict(told.metrics), step=told.step)
    finally:
        run.finish()


if __name__ == "__main__":
    main(*sys.argv[1:])
