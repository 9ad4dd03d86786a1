"""Runs the node in this process, with its signals, its log and its supervision."""

import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import trio

from client.cli.logging.log_file import LogFile
from client.cli.logging.log_writer import as_json, log_writer
from client.cli.reach.home import Home, promised_port
from client.cli.serving.background import Handover
from client.cli.serving.renewal import Renewal
from client.cli.serving.supervision import Supervised
from client.clock import NodeClock
from client.control.snapshot import Snapshot
from client.errors import ExitCode, UserError, first_of, solvable
from client.events import Event, LogLine
from client.node.node import NodeOptions, run_node
from client.store.last_run import RunRecord
from client.store.lock import identity_lock
from client.store.paths import SYSTEM_CONFIG_FILE, find_folders, make_private
from client.views.status import one_line as progress_line
from protocol.invite import parse_target

REPORT_S = 60.0


def serve(home: Home, told: Handover, *, quiet: bool) -> int:
    """Run the node until it is done or the user stops it; return the exit code.

    Args:
        home: folders and identity.
        told: what it is started with.
        quiet: write the log only to its file.

    Raises:
        UserError: no member was reached, or another problem that the user can solve.
    """
    target, log = parse_target(told.swarm), LogFile(home.folders.logs)
    settings = promised_port(home.settings, home.signer().peer, target)
    write = log_writer(settings, log, quiet=quiet)
    record = RunRecord(home.folders.data)

    def warn(words: str) -> None:
        write(LogLine(words=words, level="warning"))

    options = NodeOptions(
        settings=settings,
        target=target,
        data_path=Path(told.data) if told.data else None,
        exit_when_done=told.exit_when_done,
        relay_only=told.relay_only,
        renewed=Renewal(told.resolved, find_folders().config_file, SYSTEM_CONFIG_FILE, warn),
    )
    with identity_lock(make_private(home.folders.data)):  # until its end is noted
        try:
            code: ExitCode = trio.run(_run, options, write, record, clock=NodeClock())
        except BaseException as error:
            known, end = solvable(error), _end_of(error)
            record.end(end.message, end.next_step, end.exit_code)
            line = LogLine(words=f"{end}; {end.next_step}", level="error")
            if known is not None and settings.log_format == "json" and not quiet:
                write(line)  # for programs that read only the log
                known.told = True
            elif isinstance(error, Exception):
                log.write(as_json(line, time.time()))
            raise
        else:
            record.end("it drained and left the swarm", "", code)
            return code
        finally:
            log.close()


def _end_of(error: BaseException) -> UserError:
    """Return the reason of the node's end, also of one that its owner cannot solve."""
    if (known := solvable(error)) is not None:
        return known
    if first_of(BaseExceptionGroup("", [error]), KeyboardInterrupt) is not None:
        return UserError("it was interrupted while it started", "", ExitCode.INTERRUPTED)
    return UserError(f"internal error: {error!r}", "please report it, with volunteer doctor")


async def _run(
    options: NodeOptions,
    write: Callable[[Event], None],
    record: RunRecord,
) -> ExitCode:
    supervised = Supervised()
    settings = options.settings
    async with trio.open_nursery() as nursery:
        stop = trio.Event()
        await nursery.start(_stop_on_signal, stop, write, record)
        nursery.start_soon(supervised.keep_informed, stop)
        nursery.start_soon(_tell, supervised, write, settings.device)
        if settings.metrics_port:
            from client.cli.serving.metrics import serve_metrics

            host, port = settings.metrics_host, settings.metrics_port
            await nursery.start(serve_metrics, host, port, supervised.snapshot)
        ready = replace(options, ready=supervised.set_up)
        code = await run_node(ready, on_event=write, stop=stop)
        nursery.cancel_scope.cancel()
    return code


async def _tell(supervised: Supervised, write: Callable[[Event], None], device: str) -> None:
    await supervised.up.wait()
    now = supervised.snapshot()
    words = (
        f"volunteer {now.version} takes part in {now.swarm_name} ({now.swarm[:12]}) as {now.peer}; "
        f"device {device}; reached at {', '.join(now.addresses) or 'no address'}"
    )
    write(LogLine(words=words))
    await report_progress(supervised.snapshot, write)


async def report_progress(snapshot: Callable[[], Snapshot], write: Callable[[Event], None]) -> None:
    """Write one line into the log every minute, until cancelled."""
    while True:
        await trio.sleep(REPORT_S)
        write(LogLine(words=progress_line(snapshot())))


async def _stop_on_signal(
    stop: trio.Event,
    write: Callable[[Event], None],
    record: RunRecord,
    task_status: Any = trio.TASK_STATUS_IGNORED,
) -> None:
    """Begin an orderly stop at the first signal; at the second, end at once.

    The second must work even when the orderly stop hangs, hence no cleaning up; the kernel takes
    back the locks, and the worker ends when its socket does. A terminal that closes is no second
    one: the shell and the kernel both send SIGHUP.
    """
    wanted = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup asks it to continue
        wanted.append(signal.SIGHUP)
    with trio.open_signal_receiver(*wanted) as signals:
        task_status.started()
        async for number in signals:
            if stop.is_set():
                if number == signal.SIGHUP:
                    continue
                record.end("it was told to stop twice, and ended at once", "", ExitCode.INTERRUPTED)
                os._exit(ExitCode.INTERRUPTED)
            write(LogLine(words="stopping: draining and saving; interrupt again to stop at once"))
            stop.set()
