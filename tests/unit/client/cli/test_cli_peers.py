"""``volunteer status peers``: the members, and how far this volunteer trusts them."""

from __future__ import annotations

from client.cli.terminal.sections import peers_text
from client.cli.terminal.status_text import status_report
from client.control.snapshot import (
    AuditCounts,
    AuditsView,
    ExpelledView,
    PeerView,
    Snapshot,
    TrustView,
)
from tests.support.control_fakes import example_snapshot

ANNA, BORIS, CARLA = (f"12D3KooWexample{name}" for name in ("00anna", "0boris", "0carla"))
LIES = "0boris contributed what it should not have computed (step 7 of stage 1; found by 2 members)"


def judged(**changes: object) -> Snapshot:
    """A swarm in which Anna is proven, Boris expelled and Carla new."""
    fields: dict[str, object] = {
        "peers": [PeerView(peer=ANNA, state="connected", rtt_ms=5.0)],
        "audits": AuditsView(
            contributions=40,
            done=3,
            agree=2,
            contributions_today=412,
            today=AuditCounts(agree=3),
        ),
        "expelled": [ExpelledView(peer=BORIS, reason=LIES, by="charges")],
        "trust": [
            TrustView(peer=BORIS, standing="expelled", words=LIES, fault="stage 1, step 7: a lie"),
            TrustView(
                peer=ANNA,
                standing="proven",
                words="steps contain its work",
                audits=AuditCounts(agree=2, unchecked=1),
                invited_by=[CARLA, BORIS],
            ),
            TrustView(peer=CARLA, standing="probation", words="one step is enough"),
        ],
    }
    return example_snapshot(**{**fields, **changes})


def test_the_section_says_whom_it_trusts_and_why_not() -> None:
    lines = [line.strip() for line in peers_text(judged()).splitlines()]
    lines = lines[lines.index("Trust") - 1 :]
    assert lines[1:3] == ["Trust", "3 of 412 contributions audited today, all agree"]
    rows = {line.split()[0]: line for line in lines[4:7]}
    assert rows[ANNA].split("  ")[-1].strip() == "0boris", "the one that has invited it"
    assert "3, 2 agree, 1 could not be checked" in rows[ANNA]
    assert "expelled" in rows[BORIS]
    assert lines[7:] == [
        f"0boris: {LIES}",
        "0boris: stage 1, step 7: a lie",
        "0carla: one step is enough",
        "evidence: volunteer evidence save FILE, which anybody can verify",
    ]


def test_whom_a_member_has_expelled_is_explained_by_the_members() -> None:
    out = [ExpelledView(peer=BORIS, reason="Anna has expelled Boris", by="inviter")]
    last = peers_text(judged(expelled=out)).splitlines()[-1]
    assert last.strip() == "evidence: volunteer status members"


def test_without_anything_to_say_there_is_no_section() -> None:
    assert "Trust" not in peers_text(example_snapshot())


def test_the_status_counts_what_disagrees_and_what_could_not_be_checked() -> None:
    counts = AuditCounts(agree=4, disagree=1, unchecked=2)
    audits = AuditsView(contributions=0, done=0, agree=0, contributions_today=50, today=counts)
    lines = status_report(judged(audits=audits)).splitlines()
    words = "7 of 50 contributions audited today, 4 agree, 1 does not agree, 2 could not be checked"
    assert f"audits    {words}" in lines
    none_yet = AuditsView(contributions=0, done=0, agree=0, contributions_today=9)
    assert "audits    0 of 9 contributions audited today" in status_report(judged(audits=none_yet))


def test_how_a_member_is_linked_is_said() -> None:
    now = judged(
        peers=[
            PeerView(peer=ANNA, state="connected", rtt_ms=5.0, punched=True),
            PeerView(peer=BORIS, state="connected", rtt_ms=6.0, relay=CARLA),
            PeerView(peer=CARLA, state="connected", rtt_ms=7.0),
        ]
    )
    _, first, second, third, *_ = peers_text(now).splitlines()
    assert "5 ms, direct through both routers" in first
    assert "6 ms, relayed through 0carla" in second
    assert "7 ms " in third
