"""The node in the background with real processes: started, shown, its screen killed, finished."""

import json
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from client.cli.founding.options import RunChoices
from client.control.snapshot import Snapshot
from client.errors import ExitCode
from client.store.paths import Kept, home_folders
from client.store.persisted import Persisted
from client.store.records import KeptContributions
from tests.support.e2e_local import (
    HOST,
    found,
    kill_nodes,
    parsed,
    snapshot_of,
    volunteer,
    wait_for,
)

pytestmark = pytest.mark.slow
LIMITS = ("--listen-host", HOST, "--threads", "1", "--seats", "1")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A swarm of one stage, and the homes of its volunteers; nothing is left running."""
    with tempfile.TemporaryDirectory(prefix="vol") as name:
        run = RunChoices(
            name="daemon", stages=1, steps=5000, sequences=2, microbatches=4, measure=False
        )
        found(Path(name), "v1", run)
        try:
            yield Path(name)
        finally:
            kill_nodes(Path(name) / "v1")


def _beyond(home: Path, step: int) -> Snapshot:
    def look() -> Snapshot | None:
        now = snapshot_of(home)
        return now if now is not None and now.step > step else None

    return wait_for(look, f"step {step}")


def test_detach_returns_when_it_answers_and_commands_reach_it(folder: Path) -> None:
    home = folder / "v1"
    swarm = ("--swarm", str(folder / "x.swarm"))
    started = parsed(volunteer(home, "join", *swarm, "--detach", "--yes", "--json", *LIMITS))
    assert started["swarm_name"] == "daemon"
    _beyond(home, 1)

    second = volunteer(home, "join", *swarm, "--detach", "--yes", *LIMITS)
    assert second.returncode == ExitCode.TEMPORARY
    assert f"process {started['pid']} already runs" in second.stderr

    assert volunteer(home, "status", "--socket").stdout.strip() == started["socket"]
    assert parsed(volunteer(home, "status", "--json"))["pid"] == started["pid"]
    assert parsed(volunteer(home, "status", "--json"))["credit"]["microbatches"] > 0
    events = volunteer(home, "logs", "--json").stdout.splitlines()
    assert {"StepCommitted"} <= {json.loads(line)["kind"] for line in events}
    assert volunteer(home, "finish", "--yes").returncode == 0
    wait_for(lambda: None if psutil.pid_exists(started["pid"]) else True, "it is gone")
    assert volunteer(home, "status").returncode == ExitCode.NOT_RUNNING
    folders = home_folders(home)
    kept = Persisted(folders.of(started["swarm"], Kept.CONTRIBUTIONS), KeptContributions).read()
    assert kept is not None
    assert kept.counts


def test_an_invite_of_a_member_outlives_the_founder(folder: Path) -> None:
    """The founder's own invite names the founder alone."""
    homes = [folder / name for name in ("v1", "v2", "v3")]
    swarm = str(folder / "x.swarm")
    try:
        pids = [_joined(home, swarm) for home in homes[:2]]
        wait_for(lambda: _invited_to(homes[0], 2), "the founder's invite names both")
        os.kill(pids[0], signal.SIGKILL)
        fresh = wait_for(lambda: _invited_to(homes[1], 1), "the founder is not named any more")
        assert fresh["private"] is False
        assert "on this machine" in " ".join(fresh["notes"])
        pids.append(_joined(homes[2], fresh["invite"]))
        wait_for(lambda: _invited_to(homes[2], 2), "the third has met the second")
    finally:
        for home in homes:
            kill_nodes(home)


def _joined(home: Path, swarm: str) -> int:
    done = volunteer(home, "join", "--swarm", swarm, "--detach", "--yes", "--json", *LIMITS)
    return int(parsed(done)["pid"])


def _invited_to(home: Path, members: int) -> dict[str, Any] | None:
    """The invite of a home's volunteer once it names so many members."""
    answer = parsed(volunteer(home, "invite", "--json"))
    return answer if len(answer["members"]) == members else None
