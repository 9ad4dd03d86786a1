"""Sections of ``volunteer status`` as tables of text: peers with trust, stages, members."""

from __future__ import annotations

from collections.abc import Iterator

from client.cli.terminal.table import aligned
from client.control.names import named
from client.control.snapshot import (
    InvitedMember,
    Membership,
    PeerView,
    Snapshot,
    StageView,
    TrustView,
)
from client.control.trust_words import audit_results, audits_today, next_step
from protocol.ids import PeerId, short

NO_TREE = "anybody who has an invite is a member of this swarm: see volunteer status peers"


def peers_text(now: Snapshot) -> str:
    """Return the members that this volunteer knows, the nearest first, and how far it trusts
    them."""
    held: dict[str, list[str]] = {}
    for stage in now.stages:
        for one in stage.replicas:
            words = f"{stage.stage} ({one.state}, {one.rate:.2g}/s)"
            held.setdefault(one.peer, []).append(words)
    nearest = sorted(now.peers, key=lambda p: (p.rtt_ms is None, p.rtt_ms or 0.0, p.peer))
    rows = [
        [
            one.peer,
            now.names.get(one.peer) or "-",
            one.state,
            _round_trip(one),
            ", ".join(held.get(one.peer, ["-"])),
        ]
        for one in nearest
    ]
    head = ["member", "name", "state", "round trip", "stages"]
    return "\n".join([*aligned(head, rows), *_trust_lines(now)])


def stages_text(now: Snapshot) -> str:
    """Return the stages: how many serve each, how fast, and who."""
    head = ["stage", "layers", "version", "serving", "rate", "held by"]
    return "\n".join(aligned(head, [_stage_row(stage, now) for stage in now.stages]))


def members_text(found: Membership, now: Snapshot) -> str:
    """Return the members of a swarm that is entered by invitation, each below who invited it."""
    if not found.by_invitation:
        return NO_TREE
    rows = [
        [
            "  " * one.depth + one.peer + (" (you)" if one.peer == now.peer else ""),
            now.names.get(one.peer, "-"),
            "yes" if one.linked else "no",
            _standing(one),
        ]
        for one in found.members
    ]
    return "\n".join(aligned(["member", "name", "here", "standing"], rows))


def _trust_lines(now: Snapshot) -> Iterator[str]:
    """Yield how far each member is trusted, why some are not, and where the evidence is."""
    if not (now.trust or now.audits):
        return
    yield ""
    yield "Trust"
    if now.audits:
        yield f"  {audits_today(now.audits)}"
    rows = [[one.peer, one.standing, _audits(one), _inviter(one)] for one in now.trust]
    head = ["member", "standing", "our audits", "invited by"]
    yield from (f"  {line}" for line in (aligned(head, rows) if rows else ()))
    for one in now.trust:
        for words in (one.words if one.standing != "proven" else "", one.fault):
            if words:
                yield f"  {short(PeerId(one.peer))}: {words}"
    for step in dict.fromkeys(map(next_step, now.expelled)):
        yield f"  evidence: {step}"


def _audits(one: TrustView) -> str:
    return f"{one.audits.drawn}, {audit_results(one.audits)}" if one.audits.drawn else "-"


def _inviter(one: TrustView) -> str:
    return short(PeerId(one.invited_by[-1])) if one.invited_by else "-"


def _round_trip(peer: PeerView) -> str:
    trip = "-" if peer.rtt_ms is None else f"{peer.rtt_ms:.0f} ms"
    if peer.punched:
        return f"{trip}, direct through both routers"
    return f"{trip}, relayed through {short(PeerId(peer.relay))}" if peer.relay else trip


def _stage_row(stage: StageView, now: Snapshot) -> list[str]:
    serving = [replica for replica in stage.replicas if replica.state == "serving"]
    holders = [
        ("this volunteer" if replica.peer == now.peer else named(replica.peer, now.names))
        + ("" if replica.state == "serving" else f" ({replica.state})")
        for replica in stage.replicas
    ]
    return [
        str(stage.stage),
        str(stage.layers),
        str(stage.version),
        str(len(serving)) if serving else "nobody",
        f"{sum(replica.rate for replica in serving):.2g}/s",
        ", ".join(holders) or "-",
    ]


def _standing(one: InvitedMember) -> str:
    if one.expelled_by:
        why = f": {one.reason}" if one.reason else ""
        return f"expelled by {one.expelled_by[-6:]}{why}"
    if not one.invited_by:
        return "founder"
    return f"invited by {one.invited_by[-6:]}" + (", yours to expel" if one.ours else "")
