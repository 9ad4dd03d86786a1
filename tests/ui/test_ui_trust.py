"""Trust on the screen: today's audits, who is proven, who was expelled and why."""

from __future__ import annotations

import pytest

from client.control.snapshot import AuditCounts, AuditsView, Snapshot
from client.views import dashboard, peers, trust
from client.views.record import Record
from client.views.span import Box, plain
from tests.ui.examples import ANNA, CARLA, ME, judged, recorded_from, snapshot, update

NARROW, WIDE = Box(60, 16), Box(140, 40)


def record_of(now: Snapshot) -> Record:
    record = recorded_from(update(1))
    record.snapshot = now
    return record


def audited(**results: int) -> Snapshot:
    return snapshot(audits=AuditsView(contributions=412, results=AuditCounts(**results)))


def test_a_run_without_audits_and_faults_has_no_summary() -> None:
    assert trust.summary(Record(), WIDE) == []
    assert trust.summary(record_of(snapshot()), WIDE) == []


@pytest.mark.parametrize(
    ("today", "words"),
    [
        ({}, "0 of 412 contributions audited"),
        ({"agree": 3}, "all agree; 3 of 412 contributions audited"),
        (
            {"agree": 3, "disagree": 1},
            "3 agree, 1 does not agree; 4 of 412 contributions audited",
        ),
    ],
)
def test_the_dashboard_has_a_line_of_them(today: dict[str, int], words: str) -> None:
    lines = plain(dashboard.machine(record_of(audited(**today)), WIDE)).splitlines()
    assert f"audits  {words}" in lines
    narrow = plain(dashboard.machine(record_of(audited(**today)), Box(32, 40))).splitlines()
    assert any(line.startswith(f"audits  {words[:8]}") for line in narrow)
    assert "audits" not in plain(dashboard.machine(record_of(snapshot()), WIDE))


def test_the_details_say_why_a_member_is_trusted() -> None:
    record = record_of(judged())
    good, new, own = (plain(peers.details(record, peer, WIDE)) for peer in (ANNA, CARLA, ME))
    assert "proven: steps that were closed here contain its work" in good
    assert "0carla, 3 invitations from the founder, in the branch of 0boris" in good
    assert "evidence" not in good
    assert "on probation: no step that was closed here contains its work; one is enough" in new
    assert "our audits" not in new
    assert "trust" not in own


def test_of_whom_nothing_is_known_nothing_is_said() -> None:
    text = plain(peers.details(record_of(snapshot()), ANNA, WIDE))
    assert "it has nothing to its name yet" in text
