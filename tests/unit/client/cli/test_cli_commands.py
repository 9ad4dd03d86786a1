"""The commands that ask a running node, its log or its folders; each also as JSON."""

import json
import shutil
import stat
import time
from pathlib import Path
from typing import Any

import pytest

from client.cli.command_line import run_command
from client.cli.diagnosis import checks_outside
from client.cli.logging.log_file import LogFile
from client.cli.logging.log_writer import as_json
from client.cli.reach import services
from client.cli.reach.home import find_home
from client.control.snapshot import EventView, LineView, NetworkView, ReachView
from client.errors import ExitCode
from client.events import LogLine
from client.store.identity import ensure_identity
from client.store.lock import identity_lock
from client.store.paths import home_folders, make_private
from client.store.persisted import Persisted
from client.store.records import KeptContributions
from tests.support.cli_process import Within
from tests.support.control_fakes import FakeProvider
from tests.support.nodes import node_of

# --- commands that go on -----------------------------------------------------------------------


def test_the_log_is_followed_through_a_change_of_the_file(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It begins before there is one; a line is written at each look, and what is of no interest."""
    log, left = LogFile(home_folders(home).logs, max_bytes=400), [f"line {n}" for n in range(9)]

    def looked(_: float) -> None:
        if not left:
            raise KeyboardInterrupt
        log.write(as_json(LogLine(words="quiet"), time.time()))
        log.write(as_json(LogLine(words=left.pop(0), level="error"), time.time()))

    monkeypatch.setattr(time, "sleep", looked)
    with pytest.raises(KeyboardInterrupt):
        run_command(["logs", "-f", "--json", "--level", "warning"])
    log.close()
    said = [json.loads(line)["words"] for line in capsys.readouterr().out.splitlines()]
    assert said == [f"line {n}" for n in range(9)]


# --- settings ------------------------------------------------------------------------------------


def test_a_home_that_create_made_takes_settings(
    tmp_path: Path, within: Within, monkeypatch: pytest.MonkeyPatch
) -> None:
    for mode in (0o700, 0o755):  # as it is made now, and as earlier versions made it
        made = tmp_path / f"made-{mode}"
        monkeypatch.setenv("VOLUNTEER_HOME", str(made))
        out = tmp_path / f"{mode}.swarm"
        assert within("create", "--no-measure", "--out", str(out)).returncode == 0
        assert stat.S_IMODE(made.stat().st_mode) == 0o700
        made.chmod(mode)
        within.ends(0, "config", "set", "threads", "2")


def test_the_administrators_settings_are_weakest(
    home: Path, within: Within, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "system.toml").write_text("threads = 1\nseats = 1\n")
    within("config", "set", "threads", "2")
    shown = within("config", "show", "--origin").stdout
    assert "threads = 2  # " in shown
    assert f"seats = 1  # {home / 'system.toml'}" in shown
    assert "daily_quota_bytes = 0  # no limit; default" in shown
    assert 'data_cache_bytes = "2GiB"  # default' in shown
    plain = within("config", "show").stdout
    (home / "config.toml").write_text(plain)
    assert within("config", "show").stdout == plain
    monkeypatch.setenv("VOLUNTEER_SEATS", "2")
    said = within.ends(0, "config", "set", "seats", "1").stdout
    assert "the variable VOLUNTEER_SEATS is set and takes precedence" in said
    assert "seats = 2\n" in within("config", "show").stdout


# --- disk ----------------------------------------------------------------------------------------


@pytest.fixture
def data(home: Path) -> Path:
    """A data folder with something of every kind, and a file of somebody else's."""
    folder = home_folders(home).data
    ensure_identity(make_private(folder))
    for name in (
        "texts/a.bin", "snapshots/s.bin", "checkpoints/x/stage-0-v1.safetensors",
        "gathered/tmp1/stage-0-v1.safetensors",
        "checkpoints/x/stage-0-v2.safetensors.damaged", "swarms/.x.123.tmp", "logs/volunteer.log",
        "mine.txt",
    ):  # fmt: skip
        path = folder / name
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_bytes(b"x" * 10)
    Persisted(folder / "contributions" / "x.bin", KeptContributions).save(KeptContributions())
    return folder


def _left(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_links_are_neither_counted_nor_removed(data: Path, tmp_path: Path, within: Within) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "book.bin").write_bytes(b"x" * 1000)
    (data / "texts" / "link.bin").symlink_to(theirs / "book.bin")
    (data / "texts" / "folder").symlink_to(theirs)
    shutil.rmtree(data / "snapshots")
    (data / "snapshots").symlink_to(theirs)
    kinds = json.loads(within("cache", "--json").stdout)["kinds"]
    sizes = {kind["kind"]: kind["size_bytes"] for kind in kinds}
    assert sizes["texts"] == 10
    assert "snapshots" not in sizes
    assert within("cache", "--prune", "--yes").returncode == 0
    assert (theirs / "book.bin").exists()
    assert (data / "texts" / "link.bin").is_symlink()


def test_nothing_is_pruned_beside_a_running_volunteer(
    home: Path, data: Path, within: Within
) -> None:
    with identity_lock(data):
        before = _left(data)
        assert within("cache", "--prune", "--yes").returncode == ExitCode.TEMPORARY
        assert _left(data) == before


# --- doctor --------------------------------------------------------------------------------------


def test_commands_find_the_volunteer_of_an_instance(
    home: Path, within: Within, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = home / "volunteer-one", home / "volunteer-two"
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setattr(services, "SYSTEM_HOME", home / "volunteer")
    with node_of(one, FakeProvider()):
        assert "example" in within("status").stdout
        with node_of(two, FakeProvider()):
            done = within.ends(ExitCode.USAGE, "status")
    assert f"VOLUNTEER_HOME={two} volunteer" in done.stderr


LINE = LineView(members=["12D3KooWx4AphPb"], version=388)
GIVEN_UP = EventView(
    seq=1, time=0.0, kind="LineGivenUp", topic="", level="warning", words="341 steps are given up"
)
SHUT = ReachView(state="unreachable", words="nobody could reach it", next_step="forward a port")
OPEN = ReachView(state="mapped", words="reachable by the router", next_step="")
NEWER = "1 member reports a newer program"


@pytest.mark.parametrize(
    ("changes", "line", "status", "words", "step"),
    [
        ({"network": NetworkView()}, "volunteer", "warn", "; is linked with no other member", ""),
        ({"network": NetworkView(links=1)}, "volunteer", "ok", "reason", ""),  # not met yet
        ({"last_error": "full"}, "volunteer", "warn", "reason; last: full", ""),
        ({"last_error": "reason"}, "volunteer", "warn", "training: reason", ""),  # it is said once
        ({"newer": NEWER}, "program", "warn", NEWER, "git pull"),
        ({"beside": [LINE]}, "two lines", "warn", "goes over to it by itself", ""),
        ({"given_up": GIVEN_UP}, "given up", "warn", GIVEN_UP.words, ""),
        ({"reach": SHUT}, "reached", "warn", SHUT.words, SHUT.next_step),
        ({"reach": OPEN}, "reached", "ok", OPEN.words, ""),
    ],
)
def test_what_a_running_volunteer_lacks_is_said(
    home: Path, changes: dict[str, Any], line: str, status: str, words: str, step: str
) -> None:
    with node_of(home, FakeProvider(reason="reason", uptime_s=61.0, **changes)):
        [check] = [one for one in checks_outside.check_node(find_home()) if one.name == line]
    assert (check.status, check.words.endswith(words)) == (status, True), check.words
    assert step in check.next_step
