"""A swarm that is entered by invitation: members invite, and one is expelled while it trains."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from client.cli.reach.home import free_port
from client.errors import ExitCode
from client.lab.local_swarm import environment
from tests.support.e2e_local import HOST, parsed, snapshot_of, volunteer, wait_for

pytestmark = pytest.mark.long
SMALL = ("--layers", "2", "--width", "32", "--heads", "2", "--context", "16", "--no-measure")


class Club:
    """The homes of the members, each with its node's process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def home(self, name: str) -> Path:
        return self._folder / name

    def join(self, name: str, invite: str, *more: str) -> subprocess.Popen[bytes]:
        """Start a node that reads its invite from stdin."""
        words = ("join", "--headless", "--listen-host", HOST, "--threads", "1", "--swarm", "-")
        with (self._folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "client.cli.main", *words, *more],
                env=environment(self.home(name)),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        assert process.stdin is not None
        process.stdin.write(invite.encode())
        process.stdin.close()
        self._processes[name] = process
        return process

    def invite(self, name: str, *more: str) -> str:
        done = volunteer(self.home(name), "invite", *more)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def step(self, name: str) -> int:
        now = snapshot_of(self.home(name))
        return -1 if now is None else now.step

    def peer(self, name: str) -> str:
        now = snapshot_of(self.home(name))
        assert now is not None
        return now.peer

    def log(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text(errors="replace")

    def end(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()


@pytest.fixture
def club(folder: Path) -> Iterator[Club]:
    made = Club(folder)
    try:
        yield made
    finally:
        made.end()


def _here(club: Club, names: list[str], seen_by: str) -> bool | None:
    """Whether all of these are members that are linked with one of them."""
    listed = parsed(volunteer(club.home(seen_by), "status", "members", "--json"))["members"]
    here = {one["peer"] for one in listed if one["linked"]}
    return True if here >= {club.peer(name) for name in names} else None


def _founded(folder: Path, club: Club) -> subprocess.CompletedProcess[str]:
    """Found the swarm, and start its founder."""
    port = free_port(HOST)
    run = ("--stages", "1", "--steps", "1000000", "--microbatch", "1", "--microbatches", "4")
    founded = volunteer(
        club.home("founder"),
        *("create", "--private", "--name", "club", "--out", str(folder / "x.swarm")),
        *("--announce", f"/ip4/{HOST}/tcp/{port}", *run, *SMALL),
    )
    assert founded.returncode == 0, founded.stderr
    club.join("founder", founded.stdout, "--listen-port", str(port))
    wait_for(lambda: club.step("founder") > 0 or None, "the founder alone to train")
    return founded


def test_members_invite_and_expel_while_the_swarm_trains(folder: Path, club: Club) -> None:
    founded = _founded(folder, club)
    once = club.invite("founder", "--once")
    club.join("friend", once)
    wait_for(lambda: club.step("friend") > 0 or None, "the friend to train")
    late = club.join("late", once)
    wait_for(late.poll, "the second use of an invite for one to be refused")
    assert late.returncode == ExitCode.REFUSED
    assert "the invite was used already" in club.log("late")

    club.join("guest", club.invite("friend"))
    wait_for(lambda: club.step("guest") > 0 or None, "the guest of the friend to train")
    club.join("good", founded.stdout)
    wait_for(lambda: club.step("good") > 0 or None, "another friend to train")
    everybody = ["founder", "friend", "guest", "good"]
    wait_for(lambda: _here(club, everybody, "good"), "all to know each other")

    refused = volunteer(club.home("good"), "expel", club.peer("friend"))
    assert refused.returncode == ExitCode.RUNTIME
    assert "only who vouched" in refused.stderr
    friend, guest = club.peer("friend"), club.peer("guest")
    done = volunteer(club.home("founder"), "expel", friend[-6:], "--reason", "sends noise")
    assert done.returncode == 0, done.stderr
    for name in ("friend", "guest"):
        process = club._processes[name]
        wait_for(process.poll, f"{name} to end")
        assert process.returncode == ExitCode.REFUSED
        assert "expelled by" in club.log(name)
        assert "sends noise" in club.log(name)

    before = max(club.step("founder"), club.step("good"))
    wait_for(lambda: club.step("good") > before + 3 or None, "the rest to train on")
    listed = parsed(volunteer(club.home("good"), "status", "members", "--json"))["members"]
    out = {one["peer"]: one["reason"] for one in listed if one["expelled_by"]}
    assert out == {friend: "sends noise", guest: "sends noise"}, "the reason reaches everybody"

    back = club.join("friend", club.invite("good"))
    wait_for(back.poll, "who was expelled by the founder to be refused, with another invite, too")
    assert back.returncode == ExitCode.REFUSED
