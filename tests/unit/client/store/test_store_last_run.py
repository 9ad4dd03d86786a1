"""The record of how a home's newest run ended."""

import os
import time
from pathlib import Path

import msgspec
import psutil
import pytest

from client.store import last_run
from client.store.last_run import FILE_NAME, LastRun, RunRecord
from client.store.lock import identity_lock
from tests.support.cli_process import living
from tests.support.full_disk import full

SLEEPER = """
import sys, time
from pathlib import Path
from client.store.lock import identity_lock
from client.store.last_run import RunRecord
with identity_lock(Path(sys.argv[1])):
    RunRecord(Path(sys.argv[1])).begin("ab" * 32, "example")
    print("up", flush=True)
    time.sleep(1000)
"""


def _run(**changes: object) -> LastRun:
    fields: dict[str, object] = {"pid": 2**22 + 5, "began": 1e9}
    return LastRun(**{**fields, **changes})  # type: ignore[arg-type]


def _keep(folder: Path, run: LastRun) -> None:
    (folder / FILE_NAME).write_bytes(msgspec.json.encode(run))


def test_a_run_that_goes_on_has_no_ending_and_its_end_says_why(tmp_path: Path) -> None:
    record = RunRecord(tmp_path)
    assert record.load() is record.ending() is None
    with identity_lock(tmp_path):
        record.begin("ab" * 32)
        began = record.running
        record.begin("ab" * 32, "my swarm")
        again = record.running
        assert (again.began, again.swarm_name) == (began.began, "my swarm")
        assert record.ending() is None

        record.end("the disk is full", "make room", 78)
        assert record.running is None
        ending = record.ending()
    assert (ending.reason, ending.exit_code, ending.failed) == ("the disk is full", 78, True)
    assert ending.next_step == "make room; start it again: volunteer join --swarm 'my swarm'"
    assert abs(ending.ended - time.time()) < 60
    assert record.ending(os.getpid()) == ending
    assert record.ending(os.getpid() + 1) is None, "that was another process"
    with identity_lock(tmp_path):
        record.begin()
        assert record.ending() is None, "the next start"
    record.end("it drained and left the swarm", "", 0)
    assert not record.ending().failed


def test_who_was_killed_is_found_to_have_ended_without_a_word(tmp_path: Path) -> None:
    with living(SLEEPER, str(tmp_path)) as process:
        record = RunRecord(tmp_path)
        assert (record.running.pid, record.ending()) == (process.pid, None)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # dead, and not yet asked how
        ending = record.ending(process.pid)
        assert (ending.exit_code, ending.failed, ending.swarm_name) == (None, True, "example")
        assert ending.reason.startswith("without a word: it was killed")
        assert f"the log is {tmp_path / 'logs' / 'volunteer.log'}" in ending.reason
    assert record.ending() == ending


def test_the_time_of_a_silent_end_is_that_of_the_last_sign_of_life(tmp_path: Path) -> None:
    boot = psutil.boot_time()
    _keep(tmp_path, _run(began=boot + 1))
    (tmp_path / "logs").mkdir()
    log = tmp_path / "logs" / "volunteer.log"
    log.write_bytes(b"")
    os.utime(log, (boot + 50, boot + 50))
    ending = RunRecord(tmp_path).ending()
    assert (ending.ended, ending.when.endswith(" or later")) == (boot + 50, True)
    assert "killed" in ending.reason
    os.utime(log, (boot - 500, boot - 500))
    _keep(tmp_path, _run(began=boot - 1000))
    ending = RunRecord(tmp_path).ending()
    assert ending.ended == boot - 500
    assert "switched off or restarted" in ending.reason


def test_another_process_of_the_same_number_is_not_taken_for_it(tmp_path: Path) -> None:
    """In a container the node has the same number at every start."""
    _keep(tmp_path, _run(pid=os.getpid(), began=5.0))
    record = RunRecord(tmp_path)
    assert record.ending() is not None
    record.begin()
    assert record.load().began > 5.0


def test_a_port_is_kept_over_runs_that_could_not_begin(tmp_path: Path) -> None:
    record = RunRecord(tmp_path)
    record.begin("ab" * 32, "example", 4001)
    record.end("it drained and left the swarm", "", 0)
    record.begin()
    assert record.load().port == 4001
    _keep(tmp_path, _run(port=4001, ended=1e9))
    record.end("no member of the swarm answered", "", 69)
    assert record.load().port == 4001


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"\xff", b"[" * 10_000, b'{"pid":"x"}', b"x" * 10**6]
)
def test_a_damaged_record_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    record = RunRecord(tmp_path)
    assert record.ending() is None
    record.end("it could not begin", "", 1)
    assert record.ending() is not None


def test_a_name_of_a_stranger_is_not_made_part_of_a_command(tmp_path: Path) -> None:
    _keep(tmp_path, _run(swarm_name="x; rm -r ~"))
    ending = RunRecord(tmp_path).ending()
    assert "--swarm 'x; rm -r ~'" in ending.next_step
    _keep(tmp_path, _run(swarm_name="x\x1b[31m"))
    ending = RunRecord(tmp_path).ending()
    assert "\x1b" not in ending.next_step


def test_on_a_full_disk_a_node_starts_and_its_end_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, another = RunRecord(tmp_path), RunRecord(tmp_path / "none")
    record.begin("ab" * 32, "mine")
    monkeypatch.setattr(last_run, "write_atomic", full)
    record.end("version 65 of stage 0 could not be saved", "free space", 1)
    ending = record.ending(os.getpid())
    assert (ending.reason, ending.exit_code) == ("version 65 of stage 0 could not be saved", 1)
    assert ending.swarm_name == "mine"
    another.begin()
    another.end("nowhere to write it", "", 1)
    assert another.load() is None
