"""Check that this machine can take part, and say what to do about each problem.

$ volunteer doctor  # a line per check: ok, warn or fail

Ends with 1 if a line says fail.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from client.cli.diagnosis import checks
from client.cli.diagnosis import checks_home as inside
from client.cli.diagnosis import checks_outside as outside
from client.cli.diagnosis.checks import Check
from client.cli.diagnosis.checks_gpu import check_gpu
from client.cli.reach.home import Home, home_with_faults
from client.cli.software import PACKAGES
from client.cli.terminal.output import print_json, printable
from client.cli.terminal.parameters import AsJson
from client.errors import ConfigError, ExitCode
from client.store.last_run import RunRecord
from client.store.paths import Entry
from client.store.swarms import SwarmStore
from client.train.transfer.state_size import data_bytes

HEAVY = ("torch", "libp2p")


def doctor(*, json: AsJson = False) -> int:
    """Check that this machine can take part; each line is ok, warn or fail, with what to do."""
    (home, faults), found = home_with_faults(), []
    for check in examine(home, faults):
        found.append(check)
        if not json:
            print(printable(f"{check.status:<5}{check.name}: {check.words}"), flush=True)
            if check.next_step:
                print(printable(f"     -> {check.next_step}"))
    well = all(check.status != "fail" for check in found)
    if json:
        print_json({"ok": well, "checks": found})
    return ExitCode.OK if well else ExitCode.RUNTIME


def checkpoints_bytes(home: Home) -> int:
    """Return the most that checkpoints of one stage of a known swarm take: those that are kept, and
    the next one, which is complete before the oldest goes."""
    runs = [swarm.manifest for swarm in SwarmStore(home.folders.swarms).all()]
    sizes = (data_bytes(run, stage) for run in runs for stage in range(run.stage_count))
    return (home.settings.checkpoint_keep + 1) * max(sizes, default=0)


def _opens(folder: Path) -> bool:
    """Whether a folder may be looked into, or is not there yet."""
    try:
        os.listdir(folder)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def examine(home: Home, faults: Sequence[ConfigError] = ()) -> Iterator[Check]:
    """Yield the results of all checks, quick ones first; ``faults`` are those of the settings."""
    yield from map(checks.check_package, PACKAGES)
    for fault in faults:
        yield Check("settings", "fail", fault.message, fault.next_step)
    for words in home.resolved.unknown:
        yield Check("settings", "warn", words, "remove or correct it")
    opens = _opens(home.folders.data)
    needed = checkpoints_bytes(home) if opens else 0
    yield checks.check_folder("data folder", home.folders.data, needed)
    if opens:
        yield inside.check_identity(home.folders.data)
        yield from inside.check_lock(home.folders.data)
        yield from inside.check_swarm_files(home.folders.swarms)
        yield from inside.check_checkpoints(home.folders.data / Entry.CHECKPOINTS)
    yield inside.check_runtime_folder(home.folders.runtime)
    run = RunRecord(home.folders.data).running
    own = run.pid if run is not None else None
    yield checks.check_port(home.settings.listen_host, home.settings.listen_port, own)
    yield checks.check_memory()
    yield outside.check_descriptors()
    yield check_gpu(home.settings)
    if run is None:
        yield outside.check_reachability(home.settings)
    if opens:
        yield from outside.check_swarms(home)
    yield from outside.check_node(home)
    yield from map(checks.check_import, HEAVY)
