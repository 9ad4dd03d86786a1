"""The network laboratory: that it leaves nothing, and that it slows traffic down."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from client.errors import UserError
from tests.netlab import ground
from tests.netlab.lab import Host, Lab, uniform
from tests.netlab.measure import rtt_ms, stream_mbit
from tests.netlab.wire import MAX_HELD_BYTES, Wire

REPOSITORY = Path(__file__).parents[2]
reason = ground.why_not()
needs_lab = pytest.mark.skipif(reason is not None, reason=f"no laboratory here: {reason}")


def test_the_wire_delays_in_order_and_holds_no_more_than_it_may() -> None:
    wire = Wire(0.1)
    sent = [bytes(40 + n) for n in range(100)]
    for n, data in enumerate(sent):
        wire.take(data, n / 1e3)
    assert wire.due(0.0999) is None
    assert [wire.due(1.0) for _ in sent] == sent
    assert wire.next_due is None
    for _ in range(MAX_HELD_BYTES // 65_535 + 10):
        wire.take(bytes(65_535), 2.0)
    assert wire.counts["overflowed"] >= 9


def test_without_rights_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ground, "why_not", lambda: "it takes CAP_NET_ADMIN: run it as root")
    with pytest.raises(UserError, match="run it as root"), Lab(uniform(["a"], 5)):
        pass


@needs_lab
def test_nothing_is_left_after_success_and_failure() -> None:
    with Lab(uniform(["a", "b"], 50), rtt_ms=10) as lab:
        assert len(ground.ours()) == 3
        sleeper = subprocess.Popen(lab.command("a", ["sleep", "60"]))
    assert ground.ours() == []
    assert sleeper.wait(10) == -signal.SIGKILL

    with pytest.raises(ZeroDivisionError), Lab(uniform(["a"], 5)):
        raise ZeroDivisionError
    assert ground.ours() == []


@needs_lab
def test_a_second_one_is_refused_and_leaves_the_first_as_it_is() -> None:
    with Lab(uniform(["a"], 5)) as lab:
        before = ground.ours()
        with (
            pytest.raises(UserError, match="already has a laboratory"),
            Lab(uniform(["b"], 5)),
        ):
            pass
        assert ground.ours() == before
        assert len(before) == 2
        subprocess.run(lab.command("a", ["true"]), check=True, timeout=30)
    assert ground.ours() == []


OTHER = """
from tests.netlab.lab import Lab, uniform

with Lab(uniform(["a", "b"], 5), rtt_ms=10):
    print("built", flush=True)
    input()
"""


@needs_lab
def test_what_a_killed_one_leaves_is_removed_by_the_next() -> None:
    def namespaces() -> list[str]:
        prefix = f"{ground.PREFIX}-{process.pid}-"
        return [name for name in os.listdir("/run/netns") if name.startswith(prefix)]

    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(
        [sys.executable, "-c", OTHER], cwd=REPOSITORY, text=True, **pipes
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "built\n"
        with Lab(uniform(["a"], 5)):
            assert len(namespaces()) == 3, "its owner lives"
        process.kill()
        process.wait()
        assert len(namespaces()) == 3
        with Lab(uniform(["a"], 5)):
            assert namespaces() == []


@needs_lab
@pytest.mark.slow
def test_rate_and_delay_are_about_what_they_should_be() -> None:
    hosts = {"a": Host(20, 20), "b": Host(80, 80), "c": Host(80, 80)}
    with Lab(hosts, rtt_ms=60) as lab:
        assert 60 <= rtt_ms(lab, "a", "b") < 120
        assert 10 < stream_mbit(lab, "a", "b", seconds=1.0) < 22
        assert 40 < stream_mbit(lab, "b", "c", seconds=1.0) < 88
