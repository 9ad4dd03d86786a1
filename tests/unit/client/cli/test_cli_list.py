"""``volunteer list``: every volunteer of the machine, also one that hangs or is closed."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from client.cli.reach import machine, services
from client.control.sockets import listener, listening_sockets, socket_path
from client.errors import ExitCode
from client.store.paths import runtime_folder
from tests.support.cli_process import Within, apart, living
from tests.support.control_fakes import FakeProvider
from tests.support.nodes import node_of

PEER = "12D3KooWQVJeEspFqUfxUYGgL7GTpevs1mT5aLgaFYv7TSjBuRer"
LISTENS = """
import signal, socket, sys
listening = socket.socket(socket.AF_UNIX)
listening.bind(sys.argv[1])
listening.listen(16)
print("up", flush=True)
signal.pause()
"""
DRIPS = LISTENS.replace(
    "signal.pause()",
    "import time\nwhile True:\n  c, _ = listening.accept()\n  try:\n    while True:\n"
    "      c.send(b'x'); time.sleep(0.05)\n  except OSError:\n    pass",
)
AS_NOBODY = """
import json, os, sys
import psutil
from client.cli.reach import machine
os.setgroups([]), os.setgid(65534), os.setuid(65534)
found = [one for one in machine.find_volunteers() if one.socket == sys.argv[1]]
print(json.dumps([[one.problem[:17], one.home] for one in found]))
"""
needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="the kernel's list is Linux's")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A short folder; no service of this machine is installed."""
    with tempfile.TemporaryDirectory(prefix="vol") as name:
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setenv("VOLUNTEER_HOME", f"{name}/mine")
        monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
        monkeypatch.setattr(services, "SYSTEM_HOME", Path(name) / "volunteer")
        monkeypatch.setattr(machine, "ASK_S", 0.5)
        yield Path(name)


def silent(path: Path, program: str = LISTENS) -> AbstractContextManager[subprocess.Popen[str]]:
    """A process that listens on a socket and never answers."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return living(program, str(path), VOLUNTEER_HOME=str(path.parent.parent))


def a_socket(home: Path, swarm: str = "cd") -> Path:
    return socket_path(runtime_folder(home), swarm * 32, PEER)


def listed(within: Within, home: Path) -> dict[str, Any] | None:
    """The entry of a home; other volunteers may run on this machine, too."""
    rows = json.loads(within("list", "--json").stdout)["volunteers"]
    found = [row for row in rows if row["home"] == str(home)]
    assert len(found) < 2
    return found[0] if found else None


@needs_linux
def test_one_of_another_home_is_listed_with_its_own_answer(within: Within, folder: Path) -> None:
    with node_of(folder / "x", FakeProvider()) as path:
        assert path in listening_sockets()
        assert listener(path).pid == os.getpid()
        found = json.loads(within("list", "--json").stdout)["volunteers"]
        (row,) = [row for row in found if row["socket"] == str(path)]
        now = row["now"]
        assert (row["problem"], now["state"]) == ("", "training")
        assert [seat["stage"] for seat in now["seats"]] == [0]
        assert (now["swarm_name"], now["own_tokens_per_s"], now["rss_bytes"]) == (
            "example",
            50.0,
            1000,
        )
        lines = within("list").stdout.splitlines()
        assert lines[0].split()[:3] == ["swarm", "stage", "state"]
        assert any(line.split()[:3] == ["example", "0", "training"] for line in lines)


@needs_linux
def test_one_that_hangs_is_named_with_its_process(within: Within, folder: Path) -> None:
    home = folder / "x"
    with silent(a_socket(home)) as process:
        row = listed(within, home)
        assert (row["pid"], row["now"]) == (process.pid, None)
        assert f"{home}: process {process.pid} listens but does not" in within("list").stdout
    assert listed(within, home) is None


@needs_linux
def test_a_line_that_never_ends_does_not_hold_up_the_list(within: Within, folder: Path) -> None:
    """Whoever names a socket like ours is asked, so it may send a byte now and then for ever."""
    with silent(a_socket(folder / "x"), DRIPS):
        row = listed(within, folder / "x")
        assert "does not answer" in row["problem"]


@needs_linux
@needs_root
def test_a_socket_of_another_user_is_named(folder: Path) -> None:
    folder.chmod(0o755)
    path = a_socket(folder / "x")
    with silent(path):
        path.parent.chmod(0o700)
        done = apart(sys.executable, "-c", AS_NOBODY, str(path))
        assert json.loads(done.stdout) == [["this user may not", str(folder / "x")]]


def test_commands_find_the_volunteer_of_an_instance(within: Within, folder: Path) -> None:
    with node_of(folder / "volunteer-one", FakeProvider()):
        assert "example" in within("status").stdout
    with (
        node_of(folder / "volunteer-one", FakeProvider()),
        node_of(folder / "volunteer-two", FakeProvider()),
    ):
        done = within.ends(ExitCode.USAGE, "status")
        assert f"VOLUNTEER_HOME={folder / 'volunteer-two'} volunteer" in done.stderr


def test_without_any_it_says_how_to_start_one(
    within: Within, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "listening_sockets", list)
    done = within("list")
    assert (done.returncode, done.stdout) == (ExitCode.NOT_RUNNING, "")
    assert "volunteer join" in done.stderr
