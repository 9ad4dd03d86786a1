"""``volunteer finish`` with real processes: one of four leaves, and nobody has anything to mend."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from client.cli.founding.options import RunChoices
from client.control.snapshot import Snapshot
from client.errors import ExitCode
from client.lab.local_swarm import LocalSwarm, Member
from tests.support.e2e_local import HOST, founded, parsed, volunteer, wait_for

pytestmark = pytest.mark.slow
FLAGS = ("--listen-host", HOST, "--threads", "1", "--seats", "1")


@pytest.fixture
def swarm() -> Iterator[LocalSwarm]:
    yield from founded(
        RunChoices(name="finish", stages=2, steps=5000, sequences=2, microbatches=6, measure=False)
    )


def _snapshots(members: list[Member]) -> list[Snapshot] | None:
    found = [member.snapshot() for member in members]
    return None if None in found else [now for now in found if now is not None]


def _two_each(members: list[Member], step: int) -> list[Snapshot] | None:
    """Everybody trains, and each stage is served by two."""
    now = _snapshots(members)
    if now is None or min(one.step for one in now) < step:
        return None
    serving = Counter(seat.stage for one in now for seat in one.seats if seat.state == "serving")
    return now if serving == {0: 2, 1: 2} else None


def test_one_finishes_and_nobody_recovers_anything(swarm: LocalSwarm) -> None:
    members = [swarm.start("v1", FLAGS)]
    members[0].wait_until_it_answers(60.0)
    members += [swarm.start(f"v{n}", FLAGS) for n in range(2, 5)]
    seen = wait_for(lambda: _two_each(members, 3), "two replicas of each stage train", members)

    leaver, rest = members[-1], members[:-1]
    (stage,) = [seat.stage for seat in seen[-1].seats]
    assert [(cost.stage, cost.remaining) for cost in seen[-1].leaving] == [(stage, 1)]
    answer = parsed(volunteer(leaver.home, "finish", "--json"))
    assert answer["left"] is True
    assert [(cost["stage"], cost["remaining"]) for cost in answer["leaving"]] == [(stage, 1)]
    assert leaver.process.wait(60) == ExitCode.OK
    saved = list((leaver.home / "data" / "checkpoints").glob(f"*/stage-{stage}-v*.safetensors"))
    assert saved

    at = max(one.step for one in seen)
    after = wait_for(
        lambda: ((now := _snapshots(rest)) and min(o.step for o in now) > at + 5 and now) or None,
        "the others go on",
        rest,
    )
    for one in after:
        assert one.counters.lost_microbatches == 0, "nothing was replayed"
        assert one.counters.doubled_microbatches == 0
    events = [event for member in rest for event in member.new_events()]
    assert not [event.words for event in events if event.kind == "RecoveryEvent"]
