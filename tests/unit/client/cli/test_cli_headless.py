"""Reports of a node without a screen: systemd, Prometheus and its log file."""

import json
import os
import re
import signal
import socket
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from client.cli.command_line import run_command
from client.cli.logging.log_file import (
    ERRORS_NAME,
    KEPT,
    MAX_ERROR_BYTES,
    NAME,
    LogFile,
    lines_of,
    log_files,
    read_lines,
)
from client.cli.logging.log_writer import as_json
from client.cli.reach.home import find_home
from client.cli.serving import foreground as serving
from client.cli.serving.foreground import report_progress
from client.cli.serving.metrics import METRICS, REQUEST_TIMEOUT_S, serve_metrics
from client.cli.serving.supervision import Supervised
from client.config import Settings
from client.errors import ExitCode, UserError
from client.events import Event, LogLine
from client.store.last_run import RunRecord
from protocol.ids import peer_id_from_key
from tests.support.control_fakes import FakeProvider, example_snapshot


@pytest.fixture
def manager() -> Iterator[socket.socket]:
    """The end of the socket that systemd reads."""
    with (
        tempfile.TemporaryDirectory(prefix="vol") as name,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end,
    ):
        end.bind(f"{name}/notify")
        end.setblocking(False)
        yield end


def _heard(end: socket.socket) -> list[str]:
    found = []
    while True:
        try:
            found.append(end.recv(4096).decode())
        except BlockingIOError:
            return found


def _environ(manager: socket.socket, **more: str) -> dict[str, str]:
    return {"NOTIFY_SOCKET": manager.getsockname(), "PATH": "/bin", **more}


@pytest.mark.parametrize(
    ("number", "ended"), [(signal.SIGHUP, []), (signal.SIGTERM, [130]), (signal.SIGINT, [130])]
)
async def test_a_terminal_that_closes_is_one_request_to_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, ended: list[int]
) -> None:
    """The shell sends SIGHUP to its jobs, and the kernel once more; a second request is another
    signal."""
    exits: list[int] = []
    monkeypatch.setattr(serving.os, "_exit", exits.append)
    monkeypatch.setattr(signal, "getsignal", lambda _: signal.SIG_DFL)
    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        record = RunRecord(tmp_path)
        await nursery.start(serving._stop_on_signal, stop, lambda _: None, record)
        os.kill(os.getpid(), signal.SIGHUP)
        await stop.wait()
        os.kill(os.getpid(), number)
        await wait_all_tasks_blocked(0.02)
        nursery.cancel_scope.cancel()
    assert exits == ended


def test_the_service_manager_is_told_and_children_do_not_find_it(manager: socket.socket) -> None:
    watchdog = {"WATCHDOG_USEC": "4000000"}
    assert Supervised(_environ(manager, WATCHDOG_PID="1", **watchdog)).watchdog_s == 0, "another's"
    environ = _environ(manager, WATCHDOG_PID=str(os.getpid()), **watchdog)
    supervised = Supervised(environ)
    assert environ == {"PATH": "/bin"}
    assert supervised.watchdog_s == 4.0
    with pytest.raises(RuntimeError, match="not up yet"):
        supervised.snapshot()
    supervised.set_up(FakeProvider())
    assert supervised.snapshot() == FakeProvider().status()
    assert _heard(manager) == ["READY=1"]


@pytest.mark.parametrize(
    "environ",
    [{}, {"NOTIFY_SOCKET": "/nowhere/at/all"}, {"NOTIFY_SOCKET": "@abstract-and-absent"}],
)
def test_nothing_depends_on_a_manager(environ: dict[str, str]) -> None:
    supervised = Supervised(environ)
    supervised.set_up(FakeProvider())
    assert supervised.watchdog_s == 0.0


async def test_the_watchdog_is_fed_from_the_loop_and_stopping_is_said(
    nursery: trio.Nursery, manager: socket.socket, autojump_clock: trio.testing.MockClock
) -> None:
    supervised = Supervised(_environ(manager, WATCHDOG_USEC="4000000"))
    stop = trio.Event()
    nursery.start_soon(supervised.keep_informed, stop)
    await trio.sleep(10)
    assert _heard(manager) == []
    supervised.set_up(FakeProvider(state="waiting", reason="step 3\nREADY=0 \x9b\u202e"))
    await trio.sleep(9.5)
    fed = _heard(manager)
    assert fed[0] == "READY=1"
    assert fed.count("WATCHDOG=1") == 5, "every two seconds"
    assert "STATUS=waiting: step 3 READY=0 " in " ".join(fed)
    assert all(map(str.isprintable, fed))
    stop.set()
    await trio.sleep(5)
    last = _heard(manager)
    assert last.count("STOPPING=1") == 1
    assert last.count("WATCHDOG=1") >= 2
    assert any(line.startswith("EXTEND_TIMEOUT_USEC=") for line in last)


PACKAGING = Path(__file__).parents[4] / "packaging"


def _named(text: str) -> set[str]:
    return set(re.findall(r"\bvolunteer_[a-z_]+\b", text))


def test_the_dashboard_shows_metrics_that_there_are() -> None:
    panels = json.loads((PACKAGING / "grafana" / "volunteers.json").read_text())["panels"]
    shown = [_named(one["expr"]) for panel in panels for one in panel["targets"]]
    assert all(shown)
    assert set().union(*shown) <= METRICS.keys()


def test_the_alerts_are_of_metrics_that_there_are() -> None:
    rules = (PACKAGING / "prometheus" / "alerts.yaml").read_text().split("- alert: ")[1:]
    assert len(rules) >= 5
    for rule in rules:
        expression = rule.partition("expr:")[2].partition("labels:")[0]
        assert _named(expression) or "up{" in expression
        assert _named(expression) <= METRICS.keys()


async def _get(port: int, request: bytes) -> bytes:
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    async with stream:
        await stream.send_all(request)
        answer = b""
        with trio.fail_after(10), suppress(trio.BrokenResourceError):  # it read enough
            while chunk := await stream.receive_some(65536):
                answer += chunk
    return answer


async def test_metrics_are_served_on_loopback_whatever_is_asked(nursery: trio.Nursery) -> None:
    provider = FakeProvider()
    port = await nursery.start(serve_metrics, "127.0.0.1", 0, provider.status)
    assert b"200 OK" in await _get(port, b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert b"404" in await _get(port, b"GET /secret HTTP/1.1\r\n\r\n")
    assert b"400" in await _get(port, os.urandom(64).replace(b"\r", b"") + b"\r\n\r\n")
    assert b"200" not in await _get(port, b"GET /" + b"x" * 20000 + b"\r\n\r\n")
    provider.failure = RuntimeError("not up yet")
    assert b"500" in await _get(port, b"GET /metrics HTTP/1.1\r\n\r\n")
    with pytest.raises(UserError, match="metrics cannot be served"):
        await serve_metrics("127.0.0.1", port, provider.status)


@pytest.mark.parametrize(
    ("named", "status"),
    [
        ("localhost:9464", b"200"), ("127.0.0.1:9464", b"200"), ("[::1]:9464", b"200"),
        ("attacker.example:9464", b"421"), ("[attacker.example]", b"421"), ("", b"421"),
    ],
)  # fmt: skip
async def test_a_page_whose_name_leads_to_loopback_reads_no_metrics(
    nursery: trio.Nursery, named: str, status: bytes
) -> None:
    port = await nursery.start(serve_metrics, "127.0.0.1", 0, FakeProvider().status)
    request = f"GET /metrics HTTP/1.1\r\nAccept: */*\r\nhOST:{named}\r\n\r\n"
    assert b" " + status + b" " in (await _get(port, request.encode())).partition(b"\r\n")[0]


async def test_metrics_are_served_on_the_address_that_was_chosen(nursery: trio.Nursery) -> None:
    assert Settings().metrics_host == "127.0.0.1"
    port = await nursery.start(serve_metrics, "::1", 0, FakeProvider().status)
    (await trio.open_tcp_stream("::1", port)).socket.close()
    with pytest.raises(OSError):
        await trio.open_tcp_stream("127.0.0.1", port)
    with pytest.raises(UserError, match=r"cannot be served on 192\.0\.2\.1 port"):
        await serve_metrics("192.0.2.1", 0, FakeProvider().status)


async def test_slow_scrapers_keep_nobody_waiting(nursery: trio.Nursery) -> None:
    port = await nursery.start(serve_metrics, "127.0.0.1", 0, FakeProvider().status)
    slow = [await trio.open_tcp_stream("127.0.0.1", port) for _ in range(30)]
    for stream in slow:
        await stream.send_all(b"GET /metrics")  # and never more
    with trio.fail_after(REQUEST_TIMEOUT_S / 2):
        assert b"200 OK" in await _get(port, b"GET /metrics HTTP/1.1\r\n\r\n")
    for stream in slow:
        await stream.aclose()


def test_the_log_is_bounded_and_read_in_order(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "logs", max_bytes=2000)
    for number in range(100):
        log.write(as_json(LogLine(words=f"line {number}"), float(number)))
    log.close()
    files = log_files(tmp_path / "logs")
    assert len(files) == KEPT
    assert all(path.stat().st_size <= 2000 for path in files)
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in files)
    times = [line.time for line in read_lines(tmp_path / "logs")]
    assert times == [float(n) for n in range(100 - len(times), 100)]
    assert len(times) > 30


def test_damaged_and_half_written_lines_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / NAME
    whole = as_json(LogLine(words="whole"), 1.0).encode()
    path.write_bytes(b"\xff{\n[]\n" + whole + b"\n" + whole[:10])
    with path.open("rb") as file:
        assert [line.words for line in lines_of(file)] == ["whole"]
        with path.open("ab") as writer:
            writer.write(whole[10:] + b"\n")
        assert [line.words for line in lines_of(file)] == ["whole"]


def test_a_log_that_cannot_be_written_ends_nothing(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("in the way")
    log = LogFile(tmp_path / "logs")
    log.write("{}")
    log.close()


def test_a_crash_leaves_its_traceback_beside_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Under a service manager the temporary folder is nobody else's and goes with the process."""
    monkeypatch.setenv("VOLUNTEER_HOME", str(tmp_path / "home"))
    failures: list[Exception] = []

    async def fail(*_: object) -> None:
        raise ExceptionGroup("a nursery", failures)

    monkeypatch.setattr(serving, "_run", fail)
    errors = find_home().folders.logs / ERRORS_NAME

    def crash(failure: Exception) -> str:
        failures[:] = [failure]
        address = f"/ip4/192.0.2.1/tcp/9/p2p/{peer_id_from_key(bytes(32))}"
        assert run_command(["join", "--headless", "--swarm", address]) == ExitCode.RUNTIME
        return capsys.readouterr().err

    crash(UserError("the port is in use"))
    assert not errors.exists()
    assert f"the traceback is in {errors}" in crash(ZeroDivisionError("of ours"))
    assert "ZeroDivisionError: of ours" in errors.read_text()
    assert errors.stat().st_mode & 0o777 == 0o600
    errors.write_bytes(b"x" * (MAX_ERROR_BYTES + 1))
    crash(ZeroDivisionError("x" * MAX_ERROR_BYTES))
    assert 0 < errors.stat().st_size < MAX_ERROR_BYTES


async def test_progress_is_reported_once_a_minute(autojump_clock: trio.testing.MockClock) -> None:
    said: list[Event] = []
    with trio.move_on_after(200):
        await report_progress(example_snapshot, said.append)
    assert [event.words for event in said] == [said[0].words] * 3
    assert said[0].words.startswith("step 3/10")
