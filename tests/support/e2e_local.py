"""Real volunteers on loopback for the end-to-end tests: one command line, many homes."""

import json
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import psutil

from client.cli.commands.create import with_ticket, write_swarm_file
from client.cli.founding.options import ModelChoices, OptimizerChoices, RunChoices
from client.control.client import ControlClient, ControlError, running_nodes
from client.control.snapshot import Snapshot
from client.lab.founding import HOST, write_lab
from client.lab.local_swarm import DATA, LocalSwarm, Member
from client.store.identity import ensure_identity
from client.store.paths import Kept, home_folders, runtime_folder
from client.store.texts import TextStore, keep_folder
from protocol.invite import SwarmFile
from tests.support.cli_process import Volunteer

JOIN = ("join", "--headless", "--listen-host", HOST, "--threads", "1", "--swarm")
TINY = ModelChoices(layers=2, width=32, heads=2, context=16)
Found = TypeVar("Found")


def volunteer(
    home: Path, *arguments: str, timeout_s: float = 180.0
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return Volunteer(home)(*arguments, timeout_s=timeout_s)


def found(
    folder: Path,
    name: str,
    run: RunChoices,
    model: ModelChoices = TINY,
    optimizer: OptimizerChoices = OptimizerChoices(),  # noqa: B008  (frozen)
) -> SwarmFile:
    """Found a swarm with ``folder/name`` as the founder's home; writes ``folder/x.swarm``."""
    home, path = folder / name, folder / "x.swarm"
    swarm = write_lab(path, home, run, model, optimizer)
    keep_folder(folder / DATA, swarm.manifest.data, TextStore(home_folders(home).texts))
    if swarm.manifest.policy.private:
        signer = ensure_identity(home_folders(home).data)
        swarm = with_ticket(swarm, signer, home_folders(home).of(swarm.swarm, Kept.VOUCHES))
        write_swarm_file(path, swarm)
    return swarm


def killed_at_the_end(folder: Path) -> LocalSwarm:
    """Volunteers with their homes below a folder, in the swarm of ``folder/x.swarm``.

    At the end they are killed. They would leave in order one after the other, each with a state to
    hand over, for a test that has seen what it came for; leaving has tests of its own.
    """
    return LocalSwarm(folder / "x.swarm", folder, folder / "logs", orderly=False)


def founded(run: RunChoices, model: ModelChoices = TINY) -> Iterator[LocalSwarm]:
    """A swarm in a short folder of its own, for fixtures: no volunteer runs yet."""
    with tempfile.TemporaryDirectory(prefix="vol") as name:
        found(Path(name), "v1", run, model)
        with killed_at_the_end(Path(name)) as processes:
            yield processes


def beyond(member: Member, step: int) -> Snapshot | None:
    """The snapshot of a member that knows of a step after this one."""
    now = member.snapshot()
    return now if now is not None and now.step > step else None


def told_losses(members: Sequence[Member]) -> Iterator[tuple[int, float]]:
    """Yield the steps that members have told of since they were heard last, with their losses."""
    for member in members:
        for event in member.new_events():
            if event.kind == "StepCommitted":
                yield int(str(event.data["step"])), float(str(event.data["loss"]))


def in_state(member: Member, members: list[Member], state: str, step: int = 0) -> Snapshot:
    """Wait until a member is in this state and the swarm has done ``step`` steps."""

    def look() -> Snapshot | None:
        now = member.snapshot()
        return now if now is not None and now.state == state and now.step >= step else None

    return wait_for(look, f"{member.name} {state}", members)


def kill_all(processes: Sequence[psutil.Process]) -> None:
    """Leave none of them behind, whatever became of the test."""
    for process in processes:
        with suppress(psutil.Error):
            process.kill()


def wait_for(
    look: Callable[[], Found | None], what: str, alive: Sequence[Any] = (), timeout_s: float = 300.0
) -> Found:
    """Poll until ``look`` returns something; fail at once when a process of ``alive`` ends."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        seen = look()
        if seen is not None:
            return seen
        ended = [member for member in alive if not member.alive]
        assert not ended, f"{what}: {ended[0].name} ended: {ended[0].log_tail(20)}"
        time.sleep(0.1)
    tails = "\n".join(f"--- {member.name}\n{_told_by(member)}" for member in alive)
    raise AssertionError(f"{what}: not within {timeout_s} s\n{tails}")


def _told_by(member: Any) -> str:
    """Return the newest lines of a member's log; of those that tell of a step, few."""
    lines = member.log_tail(5000).splitlines()
    steps = re.compile(r"\S+ step \d+: loss ")
    return "\n".join([line for line in lines if not steps.match(line)][-60:] + lines[-5:])


def kill_nodes(home: Path) -> None:
    """End whatever runs of a home's volunteers, as by SIGKILL."""
    for _, node in running_nodes(runtime_folder(home)):
        with suppress(psutil.Error):
            process = psutil.Process(node.pid)
            kill_all([process, *process.children(recursive=True)])


def snapshot_of(home: Path) -> Snapshot | None:
    """The status of a home's volunteer; None while none answers."""
    try:
        for path, _ in running_nodes(runtime_folder(home)):
            with ControlClient(path) as node:
                return node.status()
    except ControlError:
        return None
    return None


def parsed(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """Return the JSON answer of a command that must have succeeded."""
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer
