"""``volunteer finish``: says what it costs, asks a person, waits until the volunteer is gone."""

import io
import json
import sys
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from client.control.methods import Impossible
from client.control.snapshot import SeatView
from client.errors import ExitCode
from client.store.last_run import RunRecord
from tests.support.cli_process import Terminal, Within
from tests.support.control_fakes import FakeProvider
from tests.support.nodes import node_of


class LastReplica(FakeProvider):
    """The only replica of its stage."""

    def __init__(self) -> None:
        super().__init__(seats=[SeatView(stage=0, version=3, state="serving", staying=0)])


def run(
    home: Path, within: Within, provider: FakeProvider, *arguments: str
) -> CompletedProcess[str]:
    """Run the command beside a node that ends when it is asked to."""
    with node_of(home, provider, lambda: provider.stops > 0):
        return within("finish", *arguments)


def test_it_leaves_and_says_what_becomes_of_the_stages(home: Path, within: Within) -> None:
    provider = FakeProvider()
    done = run(home, within, provider, "--json")
    answer = json.loads(done.stdout)
    assert (done.returncode, provider.stops) == (0, 1)
    assert answer["left"] is True
    assert [(seat["stage"], seat["staying"]) for seat in answer["leaving"]] == [(0, 2)]


def test_the_last_replica_asks_a_person(
    home: Path, within: Within, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = LastReplica()
    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    done = run(home, within, provider)
    assert (done.returncode, provider.stops) == (ExitCode.INTERRUPTED, 0)
    assert "stage 0 would have nobody" in done.stderr
    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    done = run(home, within, provider)
    assert (done.returncode, provider.stops) == (0, 1)
    assert done.stderr.endswith("it has left the swarm\n")


@pytest.mark.parametrize("arguments", [["--yes"], []])
def test_nobody_is_asked_who_is_not_there(
    home: Path, within: Within, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    provider = LastReplica()
    monkeypatch.setattr(sys, "stdin", Terminal("n\n") if arguments else io.StringIO(""))
    done = run(home, within, provider, *arguments)
    assert (done.returncode, provider.stops) == (0, 1)
    assert "stage 0 would have nobody" in done.stdout


def test_one_that_drains_for_longer_than_is_waited_is_told_as_such(
    home: Path, within: Within
) -> None:
    with node_of(home, FakeProvider()):
        done = within("finish", "--wait-s", "0.2")
    assert done.returncode == ExitCode.TEMPORARY
    assert "it has not drained after 0.2 s" in done.stderr


class Loses(FakeProvider):
    """Its disk does not take the last version; ``late``: it turns out while it leaves."""

    def __init__(self, home: Path, *, late: bool) -> None:
        super().__init__()
        self._record, self._late = RunRecord(home / "data"), late
        self.discarded: list[bool] = []

    def finish(self, *, discard: bool = False) -> None:
        self.discarded.append(discard)
        if not self._late and not discard:
            raise Impossible("cannot save version 65 of stage 0; --discard leaves anyway")
        if self._late:
            self._record.end("version 65 of stage 0 could not be saved", "free space", 1)
        super().finish()


@pytest.mark.parametrize("late", [False, True])
def test_a_version_that_cannot_be_saved_is_told_and_the_exit_code_is_1(
    home: Path, within: Within, late: bool
) -> None:
    (home / "data").mkdir(mode=0o700)
    provider = Loses(home, late=late)
    done = run(home, within, provider, "--yes")
    assert done.returncode == ExitCode.RUNTIME
    assert "version 65 of stage 0" in done.stderr
    assert provider.stops == late


def test_discard_leaves_all_the_same(home: Path, within: Within) -> None:
    provider = Loses(home, late=False)
    done = run(home, within, provider, "--yes", "--discard")
    assert (done.returncode, provider.discarded) == (ExitCode.OK, [True])
