"""The network laboratory: its table, that it leaves nothing, and that it slows traffic down."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from client.cli.commands.create import sign, write_swarm_file
from client.cli.founding.manifest import found_swarm
from client.cli.founding.options import ModelChoices, OptimizerChoices, RunChoices
from client.errors import UserError
from client.lab.local_swarm import LocalSwarm
from client.store.identity import ensure_identity
from client.store.paths import home_folders, make_private
from protocol.address import Address
from tests.netlab import ground
from tests.netlab.lab import Lab
from tests.netlab.measure import loss, rtt_ms, stream_mbit
from tests.netlab.table import Host, Link, Table, read_table, uniform
from tests.netlab.wire import MAX_HELD_BYTES, Wire

REPOSITORY = Path(__file__).parents[2]
PORT = 4001
TINY = ModelChoices(layers=2, width=32, heads=2, context=16)
RUN = RunChoices(
    name="far", stages=2, steps=3, sequences=2, microbatches=4, measure=False, dual_homing=False
)
reason = ground.why_not()
needs_lab = pytest.mark.skipif(reason is not None, reason=f"no laboratory here: {reason}")
HOSTS = "[hosts]\na = { up_mbit = 50, down_mbit = 100 }\nb = { up_mbit = 20, down_mbit = 30 }\n"


def _table(folder: Path, text: str) -> Path:
    path = folder / "table.toml"
    path.write_text(text)
    return path


def test_a_table_says_what_lies_between_two_hosts(tmp_path: Path) -> None:
    pair = '[[links]]\nbetween = ["b", "a"]\nrtt_ms = 80\nloss = 0.1\n'
    table = read_table(_table(tmp_path, f"everywhere = {{ rtt_ms = 50 }}\n{HOSTS}c.up_mbit = 1\n"
                                        f"c.down_mbit = 1\n{pair}"))  # fmt: skip
    assert (table.link("a", "b").rtt_ms, table.link("a", "b").loss) == (80, 0.1)
    assert table.link("c", "a") == Link(rtt_ms=50)
    assert (table.rate_mbit("a", "b"), table.rate_mbit("b", "a")) == (30, 20)
    assert table.pairs() == [("a", "b"), ("a", "c"), ("b", "c")]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "missing required field `hosts`"),
        ("[hosts]\n", "length >= 1"),
        ("[hosts.a]\nup_mbit = 5\n", "missing required field `down_mbit`"),
        ("[hosts.a]\nup_mbit = 0\ndown_mbit = 1\n", "> 0.0"),
        ("[hosts.a]\nup_mbit = nan\ndown_mbit = 1\n", "up_mbit"),
        ("[hosts.a]\nup_mbit = '5'\ndown_mbit = 1\n", "got `str`"),
        ("[hosts.'../a']\nup_mbit = 5\ndown_mbit = 1\n", "is no host name"),
        ("[hosts.core]\nup_mbit = 5\ndown_mbit = 1\n", "is no host name"),
        ("speed = 3\n" + HOSTS, "unknown field `speed`"),
        ("mtu = 10\n" + HOSTS, ">= 576"),
        ("everywhere = { loss = 0.9 }\n" + HOSTS, "<= 0.5"),
        (HOSTS + '[[links]]\nbetween = ["a", "z"]\n', "between two hosts of the table"),
        (HOSTS + '[[links]]\nbetween = ["a", "a"]\n', "between two hosts of the table"),
        (HOSTS + 2 * '[[links]]\nbetween = ["a", "b"]\n', "is there twice"),
        ("not toml", "table.toml"),
        ("#" * 70_000, "larger than"),
    ],
)
def test_a_wrong_table_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        read_table(_table(tmp_path, text))


def test_no_table(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file"):
        read_table(tmp_path / "nothing.toml")


def test_the_wire_delays_in_order_loses_and_holds_no_more_than_it_may() -> None:
    ends, back = b"aaaabbbb", b"bbbbaaaa"

    def packet(which: bytes, size: int = 40) -> bytes:
        return (bytes(22) + which).ljust(size, b"\0")

    wire = Wire({ends: (0.1, 0.05, 0.0), back: (0.0, 0.0, 0.25)})
    sent = [packet(ends, 40 + n) for n in range(100)]
    for n, data in enumerate(sent):
        wire.take(data, n / 1e3)
    assert wire.due(0.0999) is None
    arrived = [wire.due(1.0) for _ in sent]
    assert arrived == sent
    assert wire.next_due is None

    for _ in range(1000):
        wire.take(packet(back), 2.0)
    assert 200 < wire.counts["lost"] < 300
    wire.take(packet(b"xxxxyyyy"), 2.0)
    wire.take(b"short", 2.0)
    assert wire.counts["strange"] == 2

    for _ in range(MAX_HELD_BYTES // 65_535 + 10):
        wire.take(packet(ends, 65_535), 2.0)
    assert wire.counts["overflowed"] >= 9


def test_without_rights_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ground, "why_not", lambda: "it takes CAP_NET_ADMIN: run it as root")
    with pytest.raises(UserError, match="run it as root"), Lab(uniform(["a"], 5, Link())):
        pass


@needs_lab
def test_nothing_is_left_after_success_and_failure() -> None:
    table = uniform(["a", "b"], 50, Link(rtt_ms=10))
    with Lab(table) as lab:
        assert len(ground.ours()) == 3
        sleeper = subprocess.Popen(lab.command("a", ["sleep", "60"]))
    assert ground.ours() == []
    assert sleeper.wait(10) == -signal.SIGKILL
    assert lab.wire_counts["strange"] < 100

    with pytest.raises(ZeroDivisionError), Lab(table):
        raise ZeroDivisionError
    assert ground.ours() == []


@needs_lab
def test_nothing_is_left_when_it_cannot_be_built(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Lab) -> None:
        ground.run(["ip", "-n", ground.namespace("a"), "link", "add", "nonsense"])

    monkeypatch.setattr(Lab, "_lay_wire", refuse)
    with pytest.raises(UserError, match="nonsense failed"), Lab(uniform(["a"], 5, Link())):
        pass
    assert ground.ours() == []


@needs_lab
def test_a_second_one_is_refused_and_leaves_the_first_as_it_is() -> None:
    with Lab(uniform(["a"], 5, Link())) as lab:
        before = ground.ours()
        with (
            pytest.raises(UserError, match="already has a laboratory"),
            Lab(uniform(["b"], 5, Link())),
        ):
            pass
        assert ground.ours() == before
        assert len(before) == 2
        subprocess.run(lab.command("a", ["true"]), check=True, timeout=30)
    assert ground.ours() == []


@contextlib.contextmanager
def _command(folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run the program until its command runs on a host; say how its namespaces' names begin."""
    _table(folder, "everywhere = { rtt_ms = 10 }\n" + HOSTS)
    program = [sys.executable, "-m", "tests.netlab", "--table", str(folder / "table.toml")]
    process = subprocess.Popen(
        [*program, "--on", "a", "--", "sh", "-c", "echo $NETLAB_ADDRESS; exec sleep 60"],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        text=True,
        # A shell lets what it runs in the background ignore interrupts, tests included.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "10.77.1.2\n"
        yield process, f"{ground.PREFIX}-{process.pid}-"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        ground.remove_stale()


def _namespaces(prefix: str) -> list[str]:
    return [name for name in os.listdir("/run/netns") if name.startswith(prefix)]


@needs_lab
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_nothing_is_left_after_a_signal(tmp_path: Path, number: signal.Signals) -> None:
    with _command(tmp_path) as (process, prefix):
        assert len(_namespaces(prefix)) == 3
        process.send_signal(number)
        assert process.wait(30) == 130
        assert _namespaces(prefix) == []


@needs_lab
def test_what_a_killed_one_leaves_is_removed_by_the_next(tmp_path: Path) -> None:
    with _command(tmp_path) as (process, prefix):
        with Lab(uniform(["a"], 5, Link())):
            assert len(_namespaces(prefix)) == 3  # its owner lives
        process.kill()
        process.wait()
        assert len(_namespaces(prefix)) == 3
        with Lab(uniform(["a"], 5, Link())):
            assert _namespaces(prefix) == []


@needs_lab
def test_a_command_ends_with_the_largest_exit_code(tmp_path: Path) -> None:
    _table(tmp_path, HOSTS)
    program = [sys.executable, "-m", "tests.netlab", "--table", str(tmp_path / "table.toml")]
    done = subprocess.run(
        [*program, "--", "sh", "-c", 'test "$NETLAB_HOST" = a || exit 7'],
        cwd=REPOSITORY,
        timeout=60,
        check=False,
    )
    assert done.returncode == 7


@needs_lab
@pytest.mark.slow
def test_rate_delay_and_loss_are_about_what_the_table_says() -> None:
    hosts = {"a": Host(20, 20), "b": Host(80, 80), "c": Host(80, 80)}
    lossy = Link(rtt_ms=20, loss=0.1)
    with Lab(Table(hosts=hosts, everywhere=Link(rtt_ms=60))) as lab:
        assert 60 <= rtt_ms(lab, "a", "b") < 120
        assert 10 < stream_mbit(lab, "a", "b", seconds=1.0) < 22
        assert 40 < stream_mbit(lab, "b", "c", seconds=1.0) < 88
    with Lab(uniform(["a", "b"], 80, lossy)) as lab:
        assert 20 <= rtt_ms(lab, "b", "a") < 60
        assert 0.05 < loss(lab, "a", "b", count=1000) < 0.2


@pytest.mark.long
@needs_lab
@pytest.mark.slow
def test_two_volunteers_train_over_a_long_line() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="vol") as name,
        Lab(uniform(["a", "b"], 50, Link(rtt_ms=50))) as lab,
        LocalSwarm(Path(name, "x.swarm"), Path(name), Path(name, "logs")) as swarm,
    ):
        signer = ensure_identity(make_private(home_folders(Path(name, "a")).data))
        manifest = found_swarm(signer.peer, RUN, TINY, OptimizerChoices()).manifest
        address = Address("ip4", lab.address("a"), PORT, signer.peer)
        write_swarm_file(Path(name, "x.swarm"), sign(manifest, signer, (address,)))
        for host in lab.hosts:
            flags = ("--listen-host", lab.address(host), "--listen-port", str(PORT))
            swarm.start(host, (*flags, "--threads", "1"), within=lab.command(host))
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and all(member.alive for member in swarm.members):
            seen = [member.snapshot() for member in swarm.members]
            if all(now is not None and now.state == "done" for now in seen):
                break
            time.sleep(0.1)
        else:
            pytest.fail("\n".join(member.log_tail(20) for member in swarm.members))
        events = [event for member in swarm.members for event in member.new_events()]
        assert {event.data["step"] for event in events if event.kind == "StepCommitted"} == {
            0,
            1,
            2,
        }
        trips = [peer.rtt_ms for now in seen if now is not None for peer in now.peers]
        assert any(trip is not None for trip in trips)
        assert all(trip >= 50 for trip in trips if trip is not None)
        swarm.stop()
    assert lab.wire_counts["passed"] > 100
