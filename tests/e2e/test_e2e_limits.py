"""A limited line, with real processes."""

import time
from collections.abc import Iterator

import pytest

from client.cli.founding.options import ModelChoices, RunChoices
from client.control.snapshot import Snapshot
from client.lab.local_swarm import LocalSwarm, Member
from tests.support.e2e_local import HOST, beyond, founded, wait_for

pytestmark = pytest.mark.long
FLAGS = ("--listen-host", HOST, "--threads", "1", "--seats", "1")
RATE = 200_000


@pytest.fixture
def swarm() -> Iterator[LocalSwarm]:
    """Wide boundaries: far more to send than the limit lets through."""
    run = RunChoices(
        name="limits", stages=2, steps=5000, sequences=4, microbatches=6, measure=False
    )
    yield from founded(run, ModelChoices(layers=2, width=128, heads=2, context=128))


def _limited(member: Member) -> Snapshot | None:
    now = member.snapshot()
    return now if now is not None and now.limits.upload_bytes_per_s == RATE else None


def test_a_limited_line_carries_no_more_and_trains_on(swarm: LocalSwarm) -> None:
    members = [swarm.start("v1", FLAGS)]
    members[0].wait_until_it_answers(60.0)
    members.append(swarm.start("v2", FLAGS))
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
