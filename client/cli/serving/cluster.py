"""The hosts of one cluster job as one volunteer: the first leads, the others follow.

Whichever of them is told to end (Ctrl-C, SIGTERM), the volunteer hands its stages over, saves and
leaves, and all of them end.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import trio

from client.cli.software import software_version
from client.cli.terminal.output import say
from client.compute.hosts.following import Following
from client.compute.hosts.job import Job
from client.compute.hosts.leading import Hosts
from client.config import Settings
from client.errors import ExitCode, UserError, first_of
from client.events import Event, LogLine
from client.train.messaging.handshake import PROTOCOL
from client.train.workers.pool import opener

if TYPE_CHECKING:
    from client.node.node import NodeOptions


async def lead(
    job: Job,
    options: NodeOptions,
    write: Callable[[Event], None],
    stop: trio.Event,
    run: Callable[[NodeOptions], Awaitable[ExitCode]],
) -> ExitCode:
    """Run the node with ranks on all hosts of a job; return its exit code.

    A job whose hosts are told to end is to be tried again later: the other hosts end with
    ``TEMPORARY``, and so does this one if it was one of the others that was told.

    Args:
        job: the hosts.
        options: of the node.
        write: writes an event into the log.
        stop: has the node drain and end.
        run: runs the node.
    """
    settings = options.settings
    hosts = Hosts(job, settings.device, _version(), lambda words: write(LogLine(words=words)))
    code, failure = ExitCode.RUNTIME, None
    async with trio.open_nursery() as nursery:
        await nursery.start(hosts.run)
        nursery.start_soon(_leave_when_asked, hosts, stop)
        try:
            code = await run(replace(options, start_worker=opener(settings.devices, hosts)))
            code = ExitCode.TEMPORARY if hosts.asked_to_leave.is_set() else code
        except Exception as error:
            failure = error  # raised below, where no nursery wraps it into a group
            known = first_of(ExceptionGroup("", [error]), UserError)
            code = known.exit_code if known else code
        finally:
            await hosts.end(ExitCode.TEMPORARY if stop.is_set() else code)
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return code


async def _leave_when_asked(hosts: Hosts, stop: trio.Event) -> None:
    await hosts.asked_to_leave.wait()
    stop.set()


def follow(job: Job, settings: Settings) -> int:
    """Start ranks for the first host of a job until that has ended; return its exit code.

    Raises:
        UserError: the first host does not come, or wants nothing to do with this one.
    """
    return trio.run(_follow, job, settings)


async def _follow(job: Job, settings: Settings) -> int:
    leave = trio.Event()
    async with trio.open_nursery() as nursery:
        await nursery.start(_leave_on_signal, leave)
        following = Following(job, settings.device, _version(), say)
        code = await following.run(leave)
        nursery.cancel_scope.cancel()
    return code


async def _leave_on_signal(leave: trio.Event, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
    """Have the volunteer leave at the first signal; at the second, end at once."""
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        task_status.started()
        async for _ in signals:
            if leave.is_set():
                os._exit(ExitCode.INTERRUPTED)
            say("stopping: the volunteer leaves, on all hosts; interrupt again to stop at once")
            leave.set()


def _version() -> str:
    return f"{software_version()} (protocol {PROTOCOL})"
