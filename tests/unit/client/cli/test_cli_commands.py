"""The commands that ask a running node, its log or its folders; each also as JSON."""

import json
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from client.cli.diagnosis import checks_outside
from client.cli.logging.log_file import LogFile
from client.cli.logging.log_writer import as_json
from client.cli.reach import services
from client.cli.reach.home import find_home
from client.control.methods import Impossible
from client.control.snapshot import EventView, LineView, NetworkView, PauseView, ReachView
from client.errors import ExitCode
from client.events import LogLine
from client.store.identity import ensure_identity
from client.store.lock import identity_lock
from client.store.paths import home_folders, make_private
from client.store.persisted import Persisted
from client.store.records import KeptContributions
from tests.support.cli_process import Terminal, Within, living
from tests.support.control_fakes import FakeProvider
from tests.support.nodes import node_of


@pytest.mark.parametrize(
    ("arguments", "keys"),
    [
        (["pause"], {"paused", "peer"}),
        (["resume"], {"resumed", "paused"}),
        (["status", "peers"], {"peers", "trust", "expelled", "audits"}),
        (["status"], {"state", "paused", "limits", "credit", "last_error"}),
        (["cache"], {"kinds", "folder"}),
        (["cache", "--prune", "--yes"], {"removed", "freed_bytes"}),
        (["config", "show"], {"settings", "origins"}),
    ],
)
def test_json_has_a_schema_version(
    home: Path, within: Within, arguments: list[str], keys: set[str]
) -> None:
    with node_of(home, FakeProvider()):
        answer = json.loads(within(*arguments, "--json").stdout)
    assert answer["schema_version"] == 1
    assert keys <= answer.keys()


@pytest.mark.parametrize(
    "command",
    [
        *("pause", "resume", "finish", "status", "status members", "status matches", "attach"),
        *("expel X", "amend --steps 400 --yes", "invite", "logs", "status --socket"),
    ],
)
def test_without_a_volunteer_they_say_so(home: Path, within: Within, command: str) -> None:
    done = within(*command.split())
    assert (done.returncode, done.stdout) == (ExitCode.NOT_RUNNING, "")


def test_pause_and_resume(home: Path, within: Within) -> None:
    provider = FakeProvider()
    with node_of(home, provider):
        before = time.time()
        assert "paused until" in within("pause", "--for", "1h30m").stdout
        assert provider.paused.until == pytest.approx(before + 5400, abs=30)
        assert "resumed" in within("resume").stdout
        assert "was not paused" in within("resume").stdout
        assert "--for: not a time" in within.ends(ExitCode.USAGE, "pause", "--for", "soon").stderr
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
        refused = within.ends(ExitCode.RUNTIME, "pause")
        assert "cannot save version 65 of stage 0" in refused.stderr
        assert provider.paused is None
        assert within("pause", "--discard").returncode == ExitCode.OK
        assert provider.paused is not None


def test_logs_are_read_without_a_volunteer(home: Path, within: Within) -> None:
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
    assert "use the form 30m, 2h or 1h30m" in within("logs", "--since", "5x").stderr
    bad = within("logs", "--level", "warning").stdout
    assert "error: " in bad
    assert "\x1b" not in bad
    last = [json.loads(line) for line in within("logs", "-n", "1", "--json").stdout.splitlines()]
    assert [(line["level"], line["schema_version"]) for line in last] == [("error", 1)]


# --- commands that go on -----------------------------------------------------------------------

RUN = """
import sys
from client.cli.main import run
print("up", flush=True)
run(sys.argv[1:])
"""


def line_of(process: subprocess.Popen[str]) -> str:
    return process.stdout.readline()


def test_the_log_is_followed_through_a_change_of_the_file(home: Path) -> None:
    log = LogFile(home_folders(home).logs, max_bytes=400)
    log.write(as_json(LogLine(words="first"), time.time()))
    with living(RUN, "logs", "-f", "--json") as process:
        assert json.loads(line_of(process))["words"] == "first"
        for number in range(8):
            log.write(as_json(LogLine(words=f"line {number}"), time.time()))
            assert json.loads(line_of(process))["words"] == f"line {number}"
    log.close()


def test_watching_prints_a_line_per_change(home: Path) -> None:
    with node_of(home, FakeProvider()), living(RUN, "status", "--watch") as process:
        assert line_of(process).startswith("step 3/10")


def test_watching_is_of_the_whole_status(home: Path, within: Within) -> None:
    with node_of(home, FakeProvider()):
        assert "peers" in within.ends(ExitCode.USAGE, "status", "peers", "--watch").stderr


# --- settings ------------------------------------------------------------------------------------


def test_settings_are_changed_without_losing_comments(home: Path, within: Within) -> None:
    path = home / "config.toml"
    make_private(home)
    path.write_text(
        '# mine\nthreads = 4  # all of them\nannounce = [\n  "/ip4/1.2.3.4/tcp/5",\n]\n'
    )
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    for name, value, since in (
        ("threads", "2", "from the next start"),
        ("upload-limit-bytes-per-s", "2MB/s", "within seconds where a volunteer runs"),
    ):
        done = within("config", "set", name, value)
        assert (done.returncode, since in done.stdout) == (0, True)
    assert (
        within("config", "set", "announce", "/ip4/1.2.3.4/tcp/6,/ip4/1.2.3.5/tcp/6").returncode == 0
    )
    assert path.read_text() == (
        '# mine\nthreads = 2\nannounce = ["/ip4/1.2.3.4/tcp/6","/ip4/1.2.3.5/tcp/6"]\n'
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
        within.ends(0, "config", "set", "threads", "2")


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


def test_a_wrong_setting_is_not_written(home: Path, within: Within) -> None:
    done = within.ends(ExitCode.USAGE, "config", "set", "thread", "2")
    assert "did you mean threads" in done.stderr
    within.ends(ExitCode.CONFIG, "config", "set", "threads", "many")
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
    assert 'data_cache_bytes = "2GiB"  # default' in shown
    plain = within("config", "show").stdout
    (home / "config.toml").write_text(plain)
    assert within("config", "show").stdout == plain
    monkeypatch.setenv("VOLUNTEER_SEATS", "2")
    said = within.ends(0, "config", "set", "seats", "1").stdout
    assert "the variable VOLUNTEER_SEATS is set and takes precedence" in said
    assert "seats = 2\n" in within("config", "show").stdout


def test_the_socket_of_what_runs(home: Path, within: Within) -> None:
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


def test_prune_removes_what_can_be_had_again(home: Path, data: Path, within: Within) -> None:
    before = _left(data)
    assert within("cache", "--prune").returncode == ExitCode.USAGE  # nobody to ask
    assert _left(data) == before
    answer = json.loads(within("cache", "--prune", "--yes", "--json").stdout)
    assert answer["freed_bytes"] == 50
    assert before - _left(data) == {
        "texts/a.bin", "snapshots/s.bin", "swarms/.x.123.tmp",
        "gathered/tmp1/stage-0-v1.safetensors",
        "checkpoints/x/stage-0-v2.safetensors.damaged",
    }  # fmt: skip
    assert within("cache", "--prune").stderr == "there is nothing to remove\n"


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


def test_a_person_is_asked_before_anything_goes(
    home: Path, data: Path, within: Within, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = _left(data)
    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    assert within("cache", "--prune").returncode == ExitCode.INTERRUPTED
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
