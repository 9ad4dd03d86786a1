"""Runs the node in this process: its signals, its log lines, and the progress line beside it."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import psutil
import trio

from client import faults
from client.cli.home import Home
from client.cli.logs import log_writer
from client.cli.output import say
from client.cli.progress import show_progress
from client.config import Settings
from client.errors import ExitCode
from client.node import NodeOptions, run_node
from client.train.capacity import MEMORY_SHARE
from client.train.opening import stage_fits
from protocol.invite import SwarmFile, Target
from protocol.manifest import Manifest


def serve(
    home: Home,
    settings: Settings,
    target: Target,
    data: Path | None,
    *,
    exit_when_done: bool,
    headless: bool,
) -> int:
    """Run the node until it is done or the user stops it; return the exit code.

    Raises:
        UserError: no member was reached, or something the user can mend is in the way.
    """
    if faults.arm(os.environ):
        say(f"volunteer: {faults.VARIABLE} is set, which is for tests only: this node will fail")
    known = target if isinstance(target, SwarmFile) else None
    if known is not None:
        refuse_if_too_small(known.manifest, settings)
    options = NodeOptions(
        settings=settings,
        manifest_bytes=known.encoded if known else None,
        manifest_signature=known.signature if known else None,
        target=target,
        data_path=data,
        exit_when_done=exit_when_done,
    )
    return trio.run(_run, options, None if headless else home.folders.runtime)


def refuse_if_too_small(manifest: Manifest, settings: Settings) -> None:
    """Say at once when this machine could never hold any stage, instead of waiting for a place.

    Raises:
        UserError: no stage fits; says what the smallest one needs.
    """
    total_bytes = int(MEMORY_SHARE * psutil.virtual_memory().total)
    usable_bytes = settings.memory_limit_bytes or total_bytes
    stages = range(manifest.stage_count)
    smallest = min(stages, key=lambda stage: manifest.stages[stage].memory_bytes)
    stage_fits(manifest, smallest, usable_bytes)


async def _run(options: NodeOptions, progress: Path | None) -> ExitCode:
    async with trio.open_nursery() as nursery:
        stop = trio.Event()
        await nursery.start(_stop_on_signal, stop)
        if progress is not None:
            nursery.start_soon(show_progress, progress)
        code = await run_node(options, on_event=log_writer(options.settings), stop=stop)
        nursery.cancel_scope.cancel()
    return code


async def _stop_on_signal(stop: trio.Event, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
    """Begin an orderly stop at the first signal; at the second, end at once.

    The second must work even when the orderly stop hangs, hence no cleaning up; the kernel takes
    back the locks, and the worker ends when its socket does.
    """
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        task_status.started()
        async for _ in signals:
            if stop.is_set():
                os._exit(ExitCode.INTERRUPTED)
            say("stopping: handing off and saving; once more to stop at once")
            stop.set()
