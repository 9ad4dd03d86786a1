"""``join`` and ``doctor`` of a host of a cluster job."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from client.cli.diagnosis.check_hosts import check_hosts, ranks_by_host
from client.cli.reach.home import free_port
from client.cli.terminal.status_text import status_report
from client.config import Settings
from client.control.snapshot import RankView, WorkerView
from client.errors import ExitCode
from tests.support.cli_process import Within
from tests.support.control_fakes import example_snapshot
from tests.support.hosts import HOST, KEY

KEY_GIVEN = {"VOLUNTEER_HOSTS_KEY": KEY.hex()}
RANKS = [
    RankView(device="cuda:0", pid=7, passes=1200, host="n1"),
    RankView(device="cuda:1", pid=8, passes=3, host="n1"),
    RankView(device="cuda:0", pid=0, passes=5, host="n2"),
]


def test_doctor_says_what_the_job_is_or_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_hosts(Settings(), {}) is None
    assert check_hosts(Settings(hosts=0), {"NNODES": "1"}) is None
    settings = Settings(hosts=2, host_index=1, hosts_address=f"{HOST}:29400")
    found = check_hosts(settings, KEY_GIVEN)
    assert found is not None
    assert found.status == "ok"
    assert found.words == f"host 1 of 2; the first one awaits the others at {HOST}:29400"
    lacks = check_hosts(settings, {})
    assert lacks is not None
    assert (lacks.status, lacks.next_step.startswith("make it once")) == ("fail", True)
    nowhere = Settings(hosts=2, host_index=1, hosts_address="nowhere.invalid:29400")
    monkeypatch.setattr(socket, "getaddrinfo", _unknown)
    unknown = check_hosts(nowhere, KEY_GIVEN)
    assert unknown is not None
    assert unknown.status == "fail"


def _unknown(*place: object) -> None:
    raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")


def test_ranks_are_named_by_their_host() -> None:
    workers = [WorkerView(state="running", stage=0, ranks=RANKS)]
    assert ranks_by_host(workers) == "n1: cuda:0, cuda:1; n2: cuda:0"
    assert ranks_by_host([WorkerView(state="running")]) == ""
    report = status_report(example_snapshot(workers=workers))
    assert "devices   n1 cuda:0 1,200 passes, n1 cuda:1 3 passes, n2 cuda:0 5 passes" in report


@pytest.mark.parametrize(
    ("flags", "words", "code"),
    [
        (("--hosts", "2"), "the index of this host is unknown", ExitCode.CONFIG),
        (("--hosts", "2", "--host-index", "1"), "the first host is unknown", ExitCode.CONFIG),
        (
            ("--hosts", "2", "--host-index", "1", "--hosts-address", f"{HOST}:9"),
            "need a key",
            ExitCode.CONFIG,
        ),
    ],
)
def test_what_a_job_lacks_is_told_before_anything_begins(
    flags: tuple[str, ...], words: str, code: ExitCode, within: Within
) -> None:
    done = within("join", "--headless", *flags)
    assert done.returncode == code
    assert words in done.stderr


def test_a_host_of_a_job_runs_without_a_screen(within: Within, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text(KEY.hex())
    key.chmod(0o600)
    place = f"{HOST}:{free_port(HOST)}"
    flags = ("--hosts", "2", "--host-index", "1", "--hosts-address", place)
    done = within("join", *flags, "--hosts-key-file", str(key))
    assert done.returncode == ExitCode.USAGE
    assert "add --headless" in done.stderr
