"""``volunteer status peers``: the members, and how far this volunteer trusts them."""

from __future__ import annotations

from client.control.snapshot import (
    AuditCounts,
    AuditsView,
    ExpelledView,
    PeerView,
    Snapshot,
    TrustView,
)
from client.views.report import peers_report, status_report
from tests.support.control_fakes import example_snapshot

ANNA, BORIS, CARLA = (f"12D3KooWexample{name}" for name in ("00anna", "0boris", "0carla"))
LIES = "0boris contributed what it should not have computed (step 7 of stage 1; found by 2 members)"


def judged(**changes: object) -> Snapshot:
    """A swarm in which Anna is proven, Boris expelled and Carla new."""
    fields: dict[str, object] = {
        "peers": [PeerView(peer=ANNA, state="connected", rtt_ms=5.0)],
        "audits": AuditsView(
            contributions=412,
            results=AuditCounts(agree=3),
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


def test_it_says_whom_the_volunteer_trusts_and_why_not() -> None:
    head, *lines = peers_report(judged()).splitlines()
    assert head.split()[0] == "volunteer"
    rows = {line.split()[1]: line for line in lines if line[:1] and line[0] in "●✗◐◆"}
    assert "connected" in rows[ANNA]
    assert "2 of 3" in rows[ANNA]
    assert "expelled" in rows[BORIS]
    facts = lines[lines.index("") + 1 :]
    assert facts[:2] == [
        "audits    all agree; 3 of 412 contributions audited",
        "members   1 proven, 1 on probation, 1 expelled",
    ]
    assert "evidence  volunteer evidence save FILE, which anybody can verify" in facts
    at = facts.index(f"0boris    {LIES}")
    assert facts[at + 1] == "          stage 1, step 7: a lie"


def test_whom_a_member_has_expelled_is_explained_by_the_members() -> None:
    out = [ExpelledView(peer=BORIS, reason="Anna has expelled Boris", by="inviter")]
    assert "evidence  volunteer status members" in peers_report(judged(expelled=out))


def test_the_status_counts_what_disagrees_and_what_could_not_be_checked() -> None:
    counts = AuditCounts(agree=4, disagree=1, unchecked=2)
    audits = AuditsView(contributions=50, results=counts)
    lines = status_report(judged(audits=audits)).splitlines()
    results = "4 agree, 1 does not agree, 2 could not be checked"
    assert f"audits    {results}; 7 of 50 contributions audited" in lines
    none_yet = AuditsView(contributions=9)
    assert "audits    0 of 9 contributions audited" in status_report(judged(audits=none_yet))


def test_how_a_member_is_linked_is_said() -> None:
    now = judged(
        peers=[
            PeerView(peer=ANNA, state="connected", rtt_ms=5.0, punched=True),
            PeerView(peer=BORIS, state="connected", rtt_ms=6.0, relay=CARLA),
            PeerView(peer=CARLA, state="connected", rtt_ms=7.0),
        ]
    )
    lines = peers_report(now).splitlines()
    assert "00anna    direct through both routers" in lines
    assert "0boris    relayed through 0carla" in lines
    assert sum("routers" in line or "relayed" in line for line in lines) == 2
