"""Reports of a node that ended: ``status``, ``attach``, ``doctor`` and others."""

import os
import stat
import sys
import threading
from pathlib import Path

import msgspec
import pytest
import trio

from client.cli import screen
from client.cli.diagnosis.checks_outside import check_node
from client.cli.reach import running
from client.cli.reach.home import Home, find_home
from client.cli.serving import foreground as serving
from client.cli.serving.background import Handover
from client.control.snapshot import Snapshot
from client.errors import ExitCode
from client.store.last_run import FILE_NAME, LastRun, RunRecord
from client.store.lock import identity_lock
from protocol.address import Address
from protocol.ids import peer_id_from_key
from tests.support.cli_process import Within, living
from tests.support.control_fakes import FakeProvider, example_snapshot
from tests.support.nodes import node_of

PEER = "12D3KooWQVJeEspFqUfxUYGgL7GTpevs1mT5aLgaFYv7TSjBuRer"
DEAD_PEER = peer_id_from_key(bytes(32))
DEAD = LastRun(
    pid=2**22 + 5,
    began=1e9,
    swarm="ab" * 32,
    swarm_name="example",
    ended=1.8e9,
    reason="this machine has no device 'cuda'",
    next_step="give --device cpu",
    exit_code=78,
)


@pytest.fixture
def home(home: Path) -> Path:
    (home / "data").mkdir(mode=0o700)
    return home


def _keep(home: Path, run: LastRun) -> None:
    (home / "data" / FILE_NAME).write_bytes(msgspec.json.encode(run))


@pytest.mark.parametrize("command", ["status", "attach", "pause", "finish"])
def test_every_command_says_why_the_node_is_not_there(
    home: Path, within: Within, command: str
) -> None:
    _keep(home, DEAD)
    done = within.ends(ExitCode.NOT_RUNNING, command)
    for words in ("of example", "(exit code 78)", "no device 'cuda'", "give --device cpu",
                  "start it again: volunteer join --swarm example"):  # fmt: skip
        assert words in done.stderr, words


def test_a_node_that_does_not_answer_yet_is_no_dead_one(home: Path) -> None:
    with identity_lock(home / "data"):
        RunRecord(home / "data").begin()
        found = running.not_running(find_home().folders)
        (check,) = check_node(find_home())
    assert f"process {os.getpid()} does not answer yet" in str(found)
    assert (check.status, f"process {os.getpid()} runs" in check.words) == ("warn", True)


def test_who_watches_a_node_end_is_told_why(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The node's control socket closes before the process has written its end."""
    ended = msgspec.structs.replace(DEAD, pid=os.getpid())

    class Ending(FakeProvider):
        def status(self) -> Snapshot:
            _keep(home, ended)
            return example_snapshot(pid=os.getpid())

    codes: list[int] = []
    with node_of(home, Ending()) as path:
        folders = find_home().folders
        watcher = threading.Thread(target=lambda: codes.append(screen.follow(path, folders)))
        watcher.start()
        while not (home / "data" / FILE_NAME).exists():
            watcher.join(0.01)
    watcher.join(20)
    assert codes == [ExitCode.RUNTIME]
    assert "no device 'cuda'" in capsys.readouterr().err


# --- what a node writes --------------------------------------------------------------------------


def _serve(home: Home) -> int:
    member = Address("ip4", "127.0.0.1", 1, DEAD_PEER)
    return serving.serve(home, Handover(swarm=str(member), resolved=home.resolved), quiet=False)


def test_a_node_that_fails_leaves_its_reason(home: Path) -> None:
    found = find_home({"listen_host": "127.0.0.1", "dial_timeout_s": 0.5})
    with pytest.raises(BaseExceptionGroup):
        _serve(found)
    record = RunRecord(found.folders.data)
    ending = record.ending()
    assert ending.exit_code == ExitCode.UNREACHABLE
    assert "no member of the swarm answered" in ending.reason
    assert stat.S_IMODE((found.folders.data / FILE_NAME).stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (KeyboardInterrupt(), ExitCode.INTERRUPTED, "interrupted while it started"),
        (ZeroDivisionError("x"), ExitCode.RUNTIME, "internal error: ZeroDivisionError('x')"),
    ],
)
def test_an_interrupt_is_no_internal_error(
    home: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: ExitCode, words: str
) -> None:
    def fail(*_: object, **_how: object) -> None:
        raise error

    monkeypatch.setattr(trio, "run", fail)
    found = find_home()
    with pytest.raises(type(error)):
        _serve(found)
    ending = RunRecord(found.folders.data).ending()
    assert (ending.exit_code, words in ending.reason) == (code, True)


def test_a_node_that_has_left_says_so(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trio, "run", lambda *_, **_how: ExitCode.OK)
    found = find_home()
    assert _serve(found) == ExitCode.OK
    ending = RunRecord(found.folders.data).ending()
    assert (ending.failed, ending.reason) == (False, "it drained and left the swarm")


NODE = """
import sys
from client.store.lock import identity_lock
from client.store.last_run import RunRecord
from client.store.paths import find_folders, make_private
with identity_lock(make_private(find_folders().data)):
    RunRecord(find_folders().data).begin("ab" * 32, "my-swarm")
    print("up", flush=True)
    sys.stdin.readline()
"""


@pytest.mark.parametrize("way", ["--headless", "--detach"])
def test_a_second_start_in_one_home_is_refused_before_anything_slow(
    home: Path, within: Within, way: str
) -> None:
    invite = f"volunteer:{'ab' * 32}?peer=/ip4/127.0.0.1/tcp/1/p2p/{PEER}"
    slow = {"libp2p", "torch"} - sys.modules.keys()
    with living(NODE) as process:
        done = within.ends(ExitCode.TEMPORARY, "join", "--swarm", invite, way, "--yes")
        assert f"process {process.pid} already runs with this identity" in done.stderr
        assert "volunteer attach" in done.stderr
        assert not slow & sys.modules.keys()
    first = RunRecord(home / "data").load()
    assert first.pid == process.pid, "its record is as it was"
