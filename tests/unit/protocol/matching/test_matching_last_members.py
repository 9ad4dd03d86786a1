"""The last members: who may decide for the whole swarm, and for how long it counts who is gone."""

from __future__ import annotations

from protocol.ids import PeerId
from protocol.matching.last_members import LONGEST_BEACONS, LastMembers

HERE = {PeerId(f"here-{number}") for number in range(3)}
GONE = {PeerId(f"gone-{number}") for number in range(16)}


def test_members_that_vanish_together_stop_the_others_for_half_an_hour_only() -> None:
    last = LastMembers()
    last.observe(HERE | GONE, 0)
    for beacon in range(1, LONGEST_BEACONS + 1):
        last.observe(HERE, beacon)
        assert not last.has_majority(HERE), beacon
    last.observe(HERE, LONGEST_BEACONS + 1)
    assert last.has_majority(HERE)
    assert not last.has_majority(GONE)
