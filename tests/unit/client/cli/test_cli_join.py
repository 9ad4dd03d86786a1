"""``join`` and ``attach``: consent, the background, and what is shown."""

import io
import json
import os
import stat
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest

from client.cli import consent
from client.cli.commands import join
from client.cli.founding.outlook import outlook
from client.cli.main import run
from client.cli.reach.home import find_home, home_of
from client.cli.serving import background as daemon
from client.cli.terminal.swarm_text import memory_words
from client.config import Settings
from client.control.snapshot import Snapshot
from client.devices import devices_of
from client.errors import ExitCode, UserError
from client.store.persisted import Persisted
from client.store.swarms import SwarmStore
from protocol.ids import SwarmId
from protocol.invite import SwarmFile
from tests.support.cli_process import REPOSITORY, Terminal, Within
from tests.support.control_fakes import example_snapshot
from tests.support.full_disk import full
from tests.support.saved_swarms import little_swarm

INVITE = f"volunteer:{'ab' * 32}?peer=/ip4/127.0.0.1/tcp/9/p2p/{{peer}}"
PEER = "12D3KooWQVJeEspFqUfxUYGgL7GTpevs1mT5aLgaFYv7TSjBuRer"


# --- consent -------------------------------------------------------------------------------------


@pytest.fixture
def swarm(book: Path) -> SwarmFile:
    return little_swarm(book, "mine")


@pytest.mark.parametrize(
    ("device", "words"),
    [
        ("auto", "2 cores, and the graphics card if there is one"),
        ("cuda:0", "2 cores, and the graphics card cuda:0"),
        ("0,1", "2 cores, and the graphics cards cuda:0, cuda:1"),
        ("mps", "2 cores, and the graphics card mps"),
        ("cpu", "2 cores"),
        ("cpu:0,cpu:1", "2 cores"),
    ],
)
def test_the_prompt_names_the_cards_that_are_used(
    tmp_path: Path, swarm: SwarmFile, device: str, words: str
) -> None:
    settings = Settings(threads=2, device=",".join(devices_of(device)))
    assert f"  processor  {words}" in list(consent.terms(settings, tmp_path, swarm))


def test_create_and_join_say_the_same_of_memory(
    tmp_path: Path, book: Path, swarm: SwarmFile
) -> None:
    words = memory_words(stage.memory_bytes for stage in swarm.manifest.stages)
    assert f"memory of a volunteer: {words}" in list(outlook(swarm.manifest, None))
    said = " ".join(consent.terms(Settings(), tmp_path, swarm))
    assert f"memory     {words}, 2 at most; no limit" in said
    assert "4.29 GB at most in transit" in said
    for settings, of in ((Settings(seats=1), swarm), (Settings(), little_swarm(book, stages=1))):
        assert ", 1 at most; no limit" in " ".join(consent.terms(settings, tmp_path, of))


@pytest.mark.parametrize("known", [True, False])
def test_an_invite_is_agreed_to_when_it_is_known_what_it_is_for(
    home: Path,
    swarm: SwarmFile,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    known: bool,
) -> None:
    """Asked of a member before anything is agreed to; where nobody answers nothing is started."""
    if known:
        SwarmStore(find_home().folders.swarms).remember(swarm)
    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    code = run(["join", "--swarm", str(swarm.invite), "--dial-timeout-s", "0.5"])
    asked = capsys.readouterr().err
    assert code == (ExitCode.INTERRUPTED if known else ExitCode.UNREACHABLE)
    assert ("The swarm mine" in asked) is known
    assert ("asking a member what the swarm is" in asked) is not known
    assert not list(home.glob("run/*"))


def test_new_terms_are_asked_about_and_other_swarms(
    tmp_path: Path, book: Path, swarm: SwarmFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "data"
    consent.remember(folder, swarm.swarm)
    assert consent.is_agreed(folder, swarm.swarm)
    assert not consent.is_agreed(folder, little_swarm(book, "other").swarm)
    monkeypatch.setattr(consent, "TERMS", consent.TERMS + 1)
    assert not consent.is_agreed(folder, swarm.swarm)
    (folder / consent.FILE_NAME).write_bytes(b"no")
    assert not consent.is_agreed(folder, swarm.swarm)
    (folder / consent.FILE_NAME).write_bytes(b'{"terms":9,"at":1.0}')
    assert not consent.is_agreed(folder, swarm.swarm), "an earlier version knew no swarms"


def test_who_agrees_on_a_full_disk_may_begin(
    tmp_path: Path,
    swarm: SwarmFile,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(Persisted, "save", full)
    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    assert consent.agrees(tmp_path / "data", Settings(), swarm)
    assert "No space left" in capsys.readouterr().err


# --- the background ------------------------------------------------------------------------------

NODE = f"""
import os, sys, time
from pathlib import Path
from types import SimpleNamespace
from typing import cast
sys.path[:0] = {[str(REPOSITORY)]!r}
from tests.support.control_fakes import FakeProvider
from tests.support.nodes import node_of
home = Path(os.environ["VOLUNTEER_HOME"])
(home / "told").write_text(sys.stdin.read())
(home / "arguments").write_text(" ".join(sys.argv[1:]))
with node_of(home, FakeProvider()):
    while (home / "told").exists():
        time.sleep(0.02)
"""


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_detach_starts_a_session_of_its_own_and_keeps_the_invite_out_of_sight(
    home: Path, within: Within, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon, "COMMAND", (sys.executable, "-c", NODE))
    invite = INVITE.format(peer=PEER) + "&ticket=" + "A" * 43
    done = within("join", "--swarm", invite, "--detach", "--yes", "--json", "--threads", "1")
    answer = json.loads(done.stdout)
    try:
        assert (answer["schema_version"], answer["swarm_name"]) == (1, "example")
        assert consent.is_agreed(find_home().folders.data, SwarmId("ab" * 32))
        assert os.getsid(answer["pid"]) == answer["pid"] != os.getsid(0)
        told = json.loads((home / "told").read_text())
        assert told["swarm"] == invite
        assert (home / "arguments").read_text() == "join --handed-over"
        command_line = Path(f"/proc/{answer['pid']}/cmdline").read_bytes()
        assert b"ticket" not in command_line
    finally:
        (home / "told").unlink()
        os.waitpid(answer["pid"], 0)


def test_what_ends_at_once_says_why_with_its_exit_code(home: Path, within: Within) -> None:
    swarm = INVITE.format(peer=PEER)
    done = within(
        "join", swarm, "--detach", "--yes", "--dial-timeout-s", "0.5",
        "--listen-host", "127.0.0.1",
    )  # fmt: skip
    assert done.returncode == ExitCode.UNREACHABLE
    assert "127.0.0.1/tcp/9" in done.stderr or "no member" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_crash_in_the_background_shows_its_last_lines(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(daemon, "COMMAND", (sys.executable, "-c", "raise ZeroDivisionError('x')"))
    with pytest.raises(UserError, match="ended with 1") as caught:
        daemon.start(find_home(), daemon.Handover(swarm="words", resolved=find_home().resolved))
    assert caught.value.exit_code == ExitCode.RUNTIME
    assert "ZeroDivisionError: x" in capsys.readouterr().err
    errors = find_home().folders.logs / "errors.log"
    assert stat.S_IMODE(errors.stat().st_mode) == 0o600
    killed = "import os; os.kill(os.getpid(), 9)"
    monkeypatch.setattr(daemon, "COMMAND", (sys.executable, "-c", killed))
    with pytest.raises(UserError, match="killed by signal 9") as caught:
        daemon.start(find_home(), daemon.Handover(swarm="words", resolved=find_home().resolved))
    assert "errors.log" not in caught.value.next_step, "there is nothing of this start in it"
    assert "ZeroDivisionError: x" in errors.read_text(), "the earlier traceback is still there"
    assert "ZeroDivisionError" not in capsys.readouterr().err
    monkeypatch.setattr(daemon.shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
    with pytest.raises(UserError, match="killed by signal 9") as caught:
        daemon.start(find_home(), daemon.Handover(swarm="words", resolved=find_home().resolved))
    assert "has no room for the reason" in caught.value.next_step


def test_an_interrupted_start_has_ended_when_the_command_does(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the next join meets a volunteer that does not answer any more."""
    monkeypatch.setattr(daemon, "COMMAND", (sys.executable, "-c", "import time; time.sleep(60)"))
    started: list[subprocess.Popen[bytes]] = []

    def interrupted(process: subprocess.Popen[bytes], *_: object) -> None:
        started.append(process)
        raise KeyboardInterrupt

    monkeypatch.setattr(daemon, "_wait_until_it_takes_part", interrupted)
    with pytest.raises(KeyboardInterrupt):
        daemon.start(find_home(), daemon.Handover(swarm="words", resolved=find_home().resolved))
    assert started[0].poll() is not None


def test_settings_are_handed_over_as_they_were_resolved(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a file nor a variable that changes meanwhile makes a difference."""
    (home / "config.toml").write_text("seats = 1\nschedule = '22:00-07:00'\n")
    monkeypatch.setenv("VOLUNTEER_UPLOAD_LIMIT_BYTES_PER_S", "2MB/s")
    announce = ("/ip4/1.2.3.4/tcp/5", "/ip4/1.2.3.5/tcp/5")
    resolved = find_home({"threads": 1, "announce": announce, "not_on_battery": True}).resolved
    given = daemon.Handover(swarm=INVITE.format(peer=PEER), resolved=resolved, exit_when_done=True)
    (home / "config.toml").write_text("seats = 2\n")
    monkeypatch.setenv("VOLUNTEER_THREADS", "2")
    told = daemon.read_handover(io.BytesIO(msgspec.json.encode(given)))
    assert told == given
    home_then = replace(find_home(), resolved=resolved)
    assert home_of(told.resolved) == home_then
    served = list[object]()
    monkeypatch.setattr(join, "serve_here", lambda *args, **how: served.extend((*args, how)) or 0)
    stdin = io.TextIOWrapper(io.BytesIO(msgspec.json.encode(given)))
    monkeypatch.setattr(sys, "stdin", stdin)
    assert run(["join", "--handed-over"]) == 0
    assert served == [given, {"quiet": True}]


@pytest.mark.parametrize(
    "text", [b"", b"{}", b'{"swarm": "x", "resolved": {"settings": {}}}', b"\xff"]
)
def test_what_nobody_handed_over_is_refused(text: bytes) -> None:
    with pytest.raises(UserError, match="for a start in the background") as caught:
        daemon.read_handover(io.BytesIO(text))
    assert caught.value.exit_code == ExitCode.USAGE


@dataclass
class Started:
    """A process in the background as its starter sees it: what it answers at each look, None while
    it does not. Each look takes a second."""

    answers: list[Snapshot | None]
    pid: int = 7
    now_s: float = 0.0

    def poll(self) -> None:
        return None

    def look(self, _: Path) -> list[tuple[Path, Snapshot]]:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return [] if answer is None else [(Path("other"), example_snapshot(pid=8)), (HERE, answer)]

    def sleep(self, _: float) -> None:
        self.now_s += 1.0


HERE = Path("socket")
MEASURES = example_snapshot(pid=7, started=False, reason="it measures")
READS = example_snapshot(pid=7, started=False, reason="it reads")
TRAINS = example_snapshot(pid=7)


@pytest.mark.parametrize(
    ("answers", "said", "at_s"),
    [
        ([None, MEASURES, MEASURES, READS, TRAINS], "it measures ...\nit reads ...\n", 4),
        ([None, TRAINS], "", 1),
        (
            [READS],
            "it reads ...\nit has not entered the swarm yet; volunteer status shows its progress\n",
            80,
        ),
        ([MEASURES, None], "it measures ...\nit has not entered the swarm yet", 80),
        ([None], "process 7 was started but does not answer yet", 80),
    ],
)
def test_a_start_is_watched_until_it_takes_part(
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    answers: list[Snapshot | None],
    said: str,
    at_s: float,
) -> None:
    """As long as a dial may take, 20 s, and a minute more."""
    started, last = Started([*answers]), answers[-1] or (answers[0] and MEASURES)
    clock = SimpleNamespace(monotonic=lambda: started.now_s, sleep=started.sleep)
    monkeypatch.setattr(daemon, "time", clock)
    monkeypatch.setattr(daemon, "running_nodes", started.look)
    errors, process = daemon.Errors(home / "errors", 0), cast("subprocess.Popen[bytes]", started)
    if last is None:
        with pytest.raises(UserError, match=said):
            daemon._wait_until_it_takes_part(process, find_home(), errors)
    else:
        found = daemon._wait_until_it_takes_part(process, find_home(), errors)
        assert found == (HERE, last)
        assert capsys.readouterr().err.startswith(said)
    assert started.now_s == at_s


def test_the_swarm_may_be_in_the_environment(
    within: Within, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VOLUNTEER_SWARM", "volunteer:zz")
    assert "64 hex" in within.ends(2, "join", "--headless").stderr
