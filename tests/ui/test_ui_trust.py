"""Trust on the screen: today's audits, who is proven, who was expelled and why."""

from __future__ import annotations

import pytest

from client.control.snapshot import AuditCounts, AuditsView, ExpelledView, Snapshot
from client.views import dashboard, peers, trust
from client.views.record import Record
from client.views.span import Box, line_width, plain
from tests.ui.examples import ANNA, BORIS, CARLA, ME, judged, recorded_from, snapshot, update

NARROW, WIDE = Box(60, 16), Box(140, 40)


def record_of(now: Snapshot) -> Record:
    record = recorded_from(update(1))
    record.snapshot = now
    return record


def audited(**results: int) -> Snapshot:
    return snapshot(audits=AuditsView(contributions=412, results=AuditCounts(**results)))


def test_the_summary_counts_our_audits_and_names_who_was_expelled() -> None:
    lines = plain(trust.summary(record_of(judged()), WIDE)).splitlines()
    results = "11 agree, 1 does not agree, 1 could not be checked"
    assert lines[0].endswith(f"{results}; 13 of 412 contributions audited")
    assert lines[1].endswith("1 proven, 1 on probation, 1 expelled")
    assert "0boris contributed something else than it had signed (step 41;" in lines[2]
    assert lines[3].endswith("volunteer evidence save FILE, which anybody can verify")


def test_stages_that_are_too_small_to_convict_anybody_are_named() -> None:
    few = plain(trust.summary(record_of(audited()), WIDE))
    assert "nobody can be convicted in stages 0, 1: " in few
    assert "convicted" not in plain(trust.summary(record_of(snapshot()), WIDE))


def test_a_run_without_audits_and_faults_has_no_summary() -> None:
    assert trust.summary(Record(), WIDE) == []
    assert trust.summary(record_of(snapshot()), WIDE) == []


@pytest.mark.parametrize("box", [Box(10, 3), Box(36, 2), NARROW, WIDE])
def test_it_stays_in_its_box(box: Box) -> None:
    lines = trust.summary(record_of(judged()), box)
    assert len(lines) <= box.height
    assert all(line_width(found) <= max(box.width, trust.LABELS + 1) for found in lines)


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


def test_the_table_shows_who_is_not_trusted_and_what_audits_found() -> None:
    rows = peers.peer_table(record_of(judged()), WIDE, "")[1]
    texts = {row.key: plain(list(row.lines)) for row in rows}
    assert list(texts) == [ME, ANNA, CARLA, BORIS], "the expelled one is the last"
    assert "connected" in texts[ANNA]
    assert "11 of 12" in texts[ANNA]
    assert texts[CARLA].startswith("◐ 0carla    probation")
    assert texts[BORIS].startswith("✗ 0boris    expelled")
    found = peers.chosen(peers.peer_rows(judged()), "expelled")
    assert [row.peer for row in found] == [BORIS]


def test_the_details_say_why_and_where_the_evidence_is() -> None:
    record = record_of(judged())
    bad, good, new, own = (
        plain(peers.details(record, peer, WIDE)) for peer in (BORIS, ANNA, CARLA, ME)
    )
    assert "expelled: 0boris contributed something else than it had signed" in bad
    assert "our audits 1 of its contributions: 1 does not agree" in bad
    assert "stage 1, step 41: is not the one that it has signed" in bad
    assert "volunteer evidence save FILE" in bad
    assert "proven: steps that were closed here contain its work" in good
    assert "0carla, 3 invitations from the founder, in the branch of 0boris" in good
    assert "evidence" not in good
    assert "on probation: no step that was closed here contains its work; one is enough" in new
    assert "our audits" not in new
    assert "trust" not in own


def test_whom_its_inviter_has_expelled_is_explained_by_the_members() -> None:
    out = [ExpelledView(peer=BORIS, reason="Anna has expelled Boris", by="inviter")]
    assert "volunteer status members" in plain(
        peers.details(record_of(judged(expelled=out)), BORIS, WIDE)
    )


def test_of_whom_nothing_is_known_nothing_is_said() -> None:
    text = plain(peers.details(record_of(snapshot()), ANNA, WIDE))
    assert "it has nothing to its name yet" in text
