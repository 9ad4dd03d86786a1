"""The commands that ask a running node, its log or its folders; each also as JSON."""

from __future__ import annotations

import io
import json
import os
import socket
import stat
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from client.cli.command_table import COMMANDS, FIRST, FIRST_GROUP, GROUPS
from client.cli.diagnosis import checks_outside
from client.cli.diagnosis.checks import Check
from client.cli.diagnosis.checks_gpu import check_gpu
from client.cli.logging.log_file import LogFile
from client.cli.logging.log_writer import as_json
from client.cli.reach.home import find_home
from client.config import Settings
from client.control.methods import Impossible
from client.control.snapshot import EventView, LineView, NetworkView, PauseView, PeerView, Snapshot
from client.errors import ExitCode
from client.events import LogLine
from client.store.identity import IdentityLock, ensure_identity
from client.store.paths import home_folders, make_private
from client.store.persisted import Persisted
from client.store.records import KeptContributions
from protocol.address import Address
from tests.support.cli_process import Within
from tests.support.control_fakes import FakeProvider, example_snapshot
from tests.support.nodes import node_of

PEER = "12D3KooWQVJeEspFqUfxUYGgL7GTpevs1mT5aLgaFYv7TSjBuRer"


class Terminal(io.StringIO):
    """Somebody who types this."""

    def isatty(self) -> bool:
        return True


class WithPeers(FakeProvider):
    """Knows two members, one of whom is near."""

    def status(self) -> Snapshot:
        far = PeerView(peer="12D3KooWfar", state="known")
        near = PeerView(peer="12D3KooWexamplenear", state="connected", rtt_ms=12.3)
        return example_snapshot(peers=[far, near], paused=self.paused)


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, within: Within) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="vol") as name:  # a socket's path must be short
        monkeypatch.setenv("VOLUNTEER_HOME", name)
        monkeypatch.setattr("client.cli.reach.home.SYSTEM_CONFIG_FILE", Path(name) / "system.toml")
        yield Path(name)


def test_every_command_has_a_group_and_examples_that_are_commands() -> None:
    for name, command in COMMANDS.items():
        assert command.group in GROUPS
        assert (command.group == FIRST_GROUP) is (name in FIRST), name
        assert "$" not in command.note
        assert all(line.split()[0] in COMMANDS for line, _ in command.examples)


@pytest.mark.parametrize(
    ("arguments", "keys"),
    [
        (["pause"], {"paused", "peer"}),
        (["pause", "--for", "2h", "--reason", "a film"], {"paused", "peer"}),
        (["resume"], {"resumed", "paused"}),
        (["status", "peers"], {"peers", "trust", "expelled", "audits"}),
        (["status", "members"], {"members"}),
        (["status"], {"state", "paused", "limits", "credit", "last_error"}),
        (["cache", "ls"], {"kinds", "folder"}),
        (["cache", "prune", "--dry-run"], {"removed", "freed_bytes"}),
        (["config", "show"], {"settings", "origins"}),
    ],
)
def test_json_has_a_schema_version(
    home: Path, within: Within, arguments: list[str], keys: set[str]
) -> None:
    with node_of(home, WithPeers()):
        answer = json.loads(within(*arguments, "--json").stdout)
    assert answer["schema_version"] == 1
    assert keys <= answer.keys()


@pytest.mark.parametrize("command", ["pause", "resume", "finish", "status"])
def test_without_a_volunteer_they_say_so(home: Path, within: Within, command: str) -> None:
    done = within(command)
    assert (done.returncode, done.stdout) == (ExitCode.NOT_RUNNING, "")


def test_pause_and_resume(home: Path, within: Within) -> None:
    provider = FakeProvider()
    with node_of(home, provider):
        before = time.time()
        assert "paused until" in within("pause", "--for", "1h30m").stdout
        assert provider.paused is not None
        assert provider.paused.until == pytest.approx(before + 5400, abs=30)
        assert "resumed" in within("resume").stdout
        assert "was not paused" in within("resume").stdout
        for wrong in (
            ["--for", "soon"],
            ["--for", "1h", "--until", "18:00"],
            ["--until", "2020-01-01"],
        ):
            assert within("pause", *wrong).returncode == ExitCode.USAGE
        assert provider.paused is None


class Unsaved(FakeProvider):
    """Its disk does not take the last version."""

    def pause(self, until: float | None, reason: str, *, discard: bool = False) -> PauseView:
        if not discard:
            raise Impossible("cannot save version 65 of stage 0; --discard leaves anyway")
        return super().pause(until, reason, discard=discard)


def test_a_pause_that_would_lose_a_version_is_refused_unless_it_may(
    home: Path, within: Within
) -> None:
    provider = Unsaved()
    with node_of(home, provider):
        refused = within("pause")
        assert refused.returncode == ExitCode.RUNTIME
        assert "cannot save version 65 of stage 0" in refused.stderr
        assert provider.paused is None
        assert within("pause", "--discard").returncode == ExitCode.OK
        assert provider.paused is not None


def test_tables_are_for_people(home: Path, within: Within) -> None:
    with node_of(home, WithPeers()):
        peers = within("status", "peers").stdout.splitlines()
        stages = within("status", "stages").stdout.splitlines()
        line = within("status", "--plain").stdout
    me, near, far = (row.split()[1] for row in peers[1:4])
    assert (me, near, far) == ("12D3KooWexamplepeer", "12D3KooWexamplenear", "12D3KooWfar")
    assert "12.3 ms" in peers[2]
    assert "you" in stages[2]
    assert stages[4].split() == ["nobody"]
    assert line.startswith("step 3/10")


def test_logs_are_read_without_a_volunteer(home: Path, within: Within) -> None:
    assert within("logs").returncode == ExitCode.NOT_RUNNING
    log = LogFile(home_folders(home).logs)
    for age_s, level, words in (
        (7200, "info", "old"),
        (60, "info", "new"),
        (30, "error", "\x1b[1mbad"),
    ):
        log.write(as_json(LogLine(words=words, level=level), time.time() - age_s))  # type: ignore[arg-type]
    log.close()
    assert len(within("logs").stdout.splitlines()) == 3
    assert "old" not in within("logs", "--since", "1h").stdout
    bad = within("logs", "--level", "warning").stdout
    assert "error: " in bad
    assert "\x1b" not in bad
    last = [json.loads(line) for line in within("logs", "-n", "1", "--json").stdout.splitlines()]
    assert [(line["level"], line["schema_version"]) for line in last] == [("error", 1)]


# --- settings ------------------------------------------------------------------------------------


def test_settings_are_changed_without_losing_comments(home: Path, within: Within) -> None:
    path = home / "config.toml"
    make_private(home)
    path.write_text(
        '# mine\nthreads = 4  # all of them\nannounce = [\n  "/ip4/1.2.3.4/tcp/5",\n]\n'
    )
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert within("config", "set", "threads", "2").returncode == 0
    assert within("config", "set", "upload-limit-bytes-per-s", "2MB/s").returncode == 0
    assert (
        within("config", "set", "announce", "/ip4/1.2.3.4/tcp/6,/ip4/1.2.3.5/tcp/6").returncode == 0
    )
    assert path.read_text() == (
        '# mine\nthreads = 2\nannounce = ["/ip4/1.2.3.4/tcp/6", "/ip4/1.2.3.5/tcp/6"]\n'
        'upload_limit_bytes_per_s = "2MB/s"\n'
    )
    values = json.loads(within("config", "show", "--json").stdout)["settings"]
    assert values["upload_limit_bytes_per_s"] == 2_000_000


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
        done = within("config", "set", "threads", "2")
        assert done.returncode == 0, done.stderr


def test_a_setting_over_several_lines_is_replaced_whole(home: Path, within: Within) -> None:
    path = home / "config.toml"
    make_private(home)
    path.write_text('schedule = """\n18:00-08:00"""  # nights\nthreads = 4\n')
    assert within("config", "set", "schedule", "20:00-06:00").returncode == 0
    assert path.read_text() == 'schedule = "20:00-06:00"\nthreads = 4\n'


def test_a_file_that_cannot_be_changed_by_lines_stays(home: Path, within: Within) -> None:
    path, odd = home / "config.toml", 'nickname = """\nthreads = """\n'
    make_private(home)
    path.write_text(odd)
    assert within("config", "set", "threads", "2").returncode == 78
    assert path.read_text() == odd


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["set", "thread", "2"], 2, "did you mean threads"),
        (["set", "threads", "many"], 78, "threads"),
        (["set", "only_when_idle", "maybe"], 78, "only_when_idle"),
    ],
)
def test_a_wrong_setting_is_not_written(
    home: Path, within: Within, arguments: list[str], code: int, words: str
) -> None:
    done = within("config", *arguments)
    assert (done.returncode, words in done.stderr) == (code, True)
    assert not (home / "config.toml").exists()


def test_the_administrators_settings_are_weakest(
    home: Path, within: Within, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "system.toml").write_text("threads = 1\nseats = 1\n")
    within("config", "set", "threads", "2")
    shown = within("config", "show", "--origin").stdout
    assert "threads = 2  # " in shown
    assert f"seats = 1  # {home / 'system.toml'}" in shown
    assert "daily_quota_bytes = 0  # no limit; default" in shown
    assert 'boundary_memory_bytes = "512MiB"  # default' in shown
    plain = within("config", "show").stdout
    (home / "shown.toml").write_text(plain)
    assert within("config", "show", "--config", str(home / "shown.toml")).stdout == plain
    monkeypatch.setenv("VOLUNTEER_SEATS", "2")
    assert "seats = 2\n" in within("config", "show").stdout


def test_the_socket_of_what_runs(home: Path, within: Within) -> None:
    assert within("status", "--socket").returncode == ExitCode.NOT_RUNNING
    with node_of(home, FakeProvider()) as path:
        assert within("status", "--socket").stdout == f"{path}\n"


# --- disk ----------------------------------------------------------------------------------------


@pytest.fixture
def data(home: Path) -> Path:
    """A data folder with something of every kind, and a file of somebody else's."""
    folder = home_folders(home).data
    ensure_identity(make_private(folder))
    for name in (
        "texts/a.bin", "snapshots/s.bin", "checkpoints/x/stage-0-v1.safetensors",
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


def test_prune_removes_what_can_be_had_again(home: Path, data: Path, within: Within) -> None:
    before = _left(data)
    assert within("cache", "prune").returncode == ExitCode.USAGE  # nobody to ask
    assert within("cache", "prune", "--dry-run").returncode == 0
    assert _left(data) == before
    answer = json.loads(within("cache", "prune", "--yes", "--json").stdout)
    assert answer["freed_bytes"] == 40
    assert before - _left(data) == {
        "texts/a.bin", "snapshots/s.bin", "swarms/.x.123.tmp",
        "checkpoints/x/stage-0-v2.safetensors.damaged",
    }  # fmt: skip
    assert within("cache", "prune", "--yes", "--checkpoints").returncode == 0
    assert "checkpoints/x/stage-0-v1.safetensors" not in _left(data)


def test_nothing_is_pruned_beside_a_running_volunteer(
    home: Path, data: Path, within: Within
) -> None:
    with IdentityLock(data):
        before = _left(data)
        assert within("cache", "prune", "--yes").returncode == ExitCode.TEMPORARY
        assert _left(data) == before


def test_a_person_is_asked_before_anything_goes(
    home: Path, data: Path, within: Within, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = _left(data)
    for command in (["cache", "prune"], ["cache", "prune", "--checkpoints"]):
        monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
        assert within(*command).returncode == ExitCode.INTERRUPTED
    assert _left(data) == before


# --- service -------------------------------------------------------------------------------------


def test_a_service_is_written_and_not_started(
    home: Path, within: Within, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls = tmp_path / "calls"
    fake = tmp_path / "bin" / "systemctl"
    fake.parent.mkdir()
    fake.write_text(f'#!/bin/sh\necho "$@" >> {calls}\necho disabled\n')
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "xdg"))
    unit = home / "xdg" / "systemd" / "user" / "volunteer.service"
    invite = home / "xdg" / "volunteer" / "swarm"
    text = f"volunteer:{'ab' * 32}?peer=/ip4/127.0.0.1/tcp/9/p2p/{PEER}"

    done = within("service", "install", "--swarm", text)
    assert done.stdout == f"{unit}\n"
    for told in (
        "to start it: systemctl --user enable --now volunteer.service",
        "to stop it: systemctl --user stop volunteer.service",
        "to see its state: systemctl --user status volunteer.service",
        "to read its log: journalctl --user -u volunteer.service -f",
    ):
        assert told in done.stderr
    assert not calls.exists(), "nothing starts unasked"
    assert invite.read_text() == text
    assert invite.stat().st_mode & 0o777 == 0o600
    assert f"ExecStart={Path(sys.executable).parent}/volunteer join --headless" in unit.read_text()
    assert text not in unit.read_text()
    other = within("service", "install", "--swarm", text.replace("ab" * 32, "cd" * 32))
    assert other.returncode == ExitCode.USAGE
    assert "for another swarm" in other.stderr
    assert invite.read_text() == text
    assert within("service", "install", "--swarm", text).returncode == 0, "a fresh invite"
    assert within("service", "uninstall").stdout == f"{unit}\n"
    assert calls.read_text() == "--user disable --now volunteer.service\n"
    assert not unit.exists()
    assert invite.exists()
    before = sorted(home.rglob("*"))
    dry = within("service", "install", "--swarm", text, "--dry-run")
    assert sorted(home.rglob("*")) == before
    assert "[Unit]" in dry.stdout
    assert f"would write {unit}" in dry.stderr


# --- doctor --------------------------------------------------------------------------------------


def test_doctor_writes_a_bundle(
    home: Path, data: Path, within: Within, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fine = Check("x", "ok", "at 203.0.113.9")
    monkeypatch.setattr("client.cli.commands.doctor.examine", lambda home, faults: iter([fine]))
    path = tmp_path / "report.zip"
    with node_of(home, FakeProvider()):
        assert within("doctor", "--bundle", str(path)).returncode == 0
    assert path.stat().st_mode & 0o777 == 0o600
    with zipfile.ZipFile(path) as bundle:
        names = set(bundle.namelist())
        everything = "".join(bundle.read(name).decode() for name in names)
    assert {"doctor.json", "versions.json", "settings.json", "status-0.json", "log.jsonl"} <= names
    assert "203.0.113.9" not in everything
    assert within("doctor", "--bundle", str(path)).returncode == ExitCode.USAGE  # not overwritten


def test_members_that_listen_answer_the_doctor() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        for where, answers in ((listening, True), (bound, False)):
            address = Address("ip4", "127.0.0.1", where.getsockname()[1])
            assert trio.run(checks_outside._answer, [address]) is answers


def test_the_outside_is_looked_at_without_raising(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert check_gpu(Settings(device="cpu")).status == "ok"
    assert check_gpu(Settings(device="cuda")).status in ("ok", "fail")
    assert checks_outside.check_descriptors().status in ("ok", "warn")
    monkeypatch.setattr(checks_outside, "own_hosts", lambda host: ["192.168.1.5"])
    assert checks_outside.check_reachability(Settings()).status == "warn"
    monkeypatch.setattr(checks_outside, "own_hosts", lambda host: ["127.0.0.1"])
    assert checks_outside.check_reachability(Settings()).status == "fail"
    monkeypatch.setattr(checks_outside.time, "time", lambda: 1000.0)
    assert checks_outside.check_clock().status == "fail"
    assert [c.status for c in checks_outside.check_swarms(find_home())] == ["ok"]
    with node_of(home, FakeProvider()):
        assert [c.status for c in checks_outside.check_node(find_home())] == ["ok"]


@pytest.mark.parametrize(
    ("changes", "level", "words"),
    [
        ({"peers": [], "network": NetworkView()}, "warn", "; is linked with no other member"),
        ({"peers": [], "network": NetworkView(links=1)}, "ok", "reason"),  # not met yet
        ({"last_error": "the disk is full"}, "warn", "reason; last: the disk is full"),
        ({"last_error": "reason"}, "warn", "training: reason"),  # it is said once
    ],
)
def test_what_a_running_volunteer_lacks_is_said(
    home: Path, changes: dict[str, Any], level: str, words: str
) -> None:
    class Lacking(FakeProvider):
        def status(self) -> Snapshot:
            return example_snapshot(reason="reason", uptime_s=61.0, **changes)

    with node_of(home, Lacking()):
        [check] = checks_outside.check_node(find_home())
    assert (check.status, check.words.endswith(words)) == (level, True)


def test_a_newer_program_elsewhere_is_a_warning_with_the_way_to_update(home: Path) -> None:
    class Older(FakeProvider):
        def status(self) -> Snapshot:
            return example_snapshot(newer="1 member reports a newer program")

    with node_of(home, Older()):
        found = {check.name: check for check in checks_outside.check_node(find_home())}
    assert found["program"].status == "warn"
    assert "git pull" in found["program"].next_step


def test_two_lines_of_the_run_and_what_was_given_up_are_warnings(home: Path) -> None:
    words = "341 steps made here without 4AphPb are given up"
    one = EventView(seq=1, time=0.0, kind="LineGivenUp", topic="", level="warning", words=words)
    other = LineView(members=["12D3KooWx4AphPb"], version=388)

    class Met(FakeProvider):
        def status(self) -> Snapshot:
            return example_snapshot(beside=[other], given_up=one)

    with node_of(home, Met()):
        found = {check.name: check for check in checks_outside.check_node(find_home())}
    assert found["two lines"].status == found["given up"].status == "warn"
    assert "4AphPb trains this run apart" in found["two lines"].words
    assert found["given up"].words == words


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_printed(within: Within, shell: str) -> None:
    done = within("completion", shell)
    assert done.returncode == 0
    assert "volunteer" in done.stdout


def test_the_snapshot_of_older_nodes_can_still_be_read() -> None:
    old = msgspec.to_builtins(example_snapshot())
    for name in ("paused", "limits", "credit", "last_error"):
        del old[name]
    assert msgspec.convert(old, Snapshot).credit.microbatches == 0
