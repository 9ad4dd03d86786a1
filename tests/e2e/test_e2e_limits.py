"""Limits with real processes: a quota that is used up, and a limited line."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime

import psutil
import pytest

from client.cli.founding.options import ModelChoices, RunChoices
from client.control.snapshot import Snapshot
from client.errors import ExitCode
from client.lab.local_swarm import LocalSwarm, Member
from tests.support.e2e_local import HOST, TINY, beyond, founded, volunteer, wait_for

pytestmark = pytest.mark.long
FLAGS = ("--listen-host", HOST, "--threads", "1", "--seats", "1")
RATE = 200_000


def _swarm(stages: int, model: ModelChoices = TINY) -> Iterator[LocalSwarm]:
    yield from founded(
        RunChoices(
            name="limits", stages=stages, steps=5000, sequences=4, microbatches=6, measure=False
        ),
        model,
    )


@pytest.fixture
def one_stage() -> Iterator[LocalSwarm]:
    yield from _swarm(1)


@pytest.fixture
def two_stages() -> Iterator[LocalSwarm]:
    """Wide boundaries: far more to send than the limit lets through."""
    yield from _swarm(2, ModelChoices(layers=2, width=128, heads=2, context=128))


def _held(member: Member, reason: str) -> Snapshot | None:
    """It is paused for this reason, and no worker runs."""
    now = member.snapshot()
    if now is None or now.paused is None or reason not in now.paused.reason:
        return None
    return None if psutil.Process(now.pid).children(recursive=True) else now


def _limited(member: Member) -> Snapshot | None:
    now = member.snapshot()
    return now if now is not None and now.limits.upload_bytes_per_s == RATE else None


def test_a_used_quota_pauses_till_midnight_and_over_a_restart(one_stage: LocalSwarm) -> None:
    flags = (*FLAGS, "--daily-quota", "2MB")
    members = [one_stage.start("v1", FLAGS)]
    members[0].wait_until_it_answers(60.0)
    members.append(one_stage.start("v2", flags))
    held = wait_for(lambda: _held(members[1], "quota of 0.002 GB"), "the quota is used", members)
    assert held.limits.daily_bytes == 2_000_000 <= held.limits.used_bytes
    assert held.paused is not None
    assert held.paused.until is not None
    midnight = datetime.fromtimestamp(held.paused.until)
    assert (midnight.hour, midnight.minute) == (0, 0)
    report = volunteer(members[1].home, "status").stdout
    assert "of 2.00 MB" in report, report
    at = held.step
    wait_for(lambda: beyond(members[0], at + 5), "the run goes on", members)

    members[1].ask_to_stop()
    assert members[1].process.wait(60) == ExitCode.OK
    members[1] = one_stage.start("v2", flags)
    again = wait_for(lambda: _held(members[1], "quota"), "it is used up still", members)
    assert again.limits.used_bytes >= held.limits.used_bytes
    assert all(worker.state != "running" for worker in again.workers)


def test_a_limited_line_carries_no_more_and_trains_on(two_stages: LocalSwarm) -> None:
    members = [two_stages.start("v1", FLAGS)]
    members[0].wait_until_it_answers(60.0)
    members.append(two_stages.start("v2", FLAGS))
    wait_for(lambda: beyond(members[0], 0), "they train", members)
    (members[0].home / "config.toml").write_text('upload_limit_bytes_per_s = "200kB/s"\n')
    first = wait_for(lambda: _limited(members[0]), "the limit is taken", members)
    began = time.monotonic()
    last = wait_for(lambda: beyond(members[0], first.step + 3), "they go on", members)
    while (taken_s := time.monotonic() - began) < 8:
        last = wait_for(members[0].snapshot, "it answers", members)
        time.sleep(0.1)
    carried = last.network.sent_bytes - first.network.sent_bytes
    assert carried <= RATE * (taken_s + 1) + 600_000  # a burst, and one of small messages
    assert carried >= RATE * taken_s / 4, "there was more to send"
    assert last.counters.doubled_microbatches == 0
    assert last.limits.upload_bytes_per_s == RATE
