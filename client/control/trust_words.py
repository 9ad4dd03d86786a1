"""Audits and expulsions in words, the same for every front end."""

from __future__ import annotations

from client.control.snapshot import AuditCounts, ExpelledView, Snapshot
from protocol.limits import LEAST_TO_CONVICT


def audit_results(found: AuditCounts) -> str:
    """Return what audits came to: ``all agree``, or ``11 agree, 1 does not agree``."""
    if found.agree == found.drawn:
        return "all agree"
    do = "does" if found.disagree == 1 else "do"
    parts = [
        f"{found.agree} agree" if found.agree else "",
        f"{found.disagree} {do} not agree" if found.disagree else "",
        f"{found.unchecked} could not be checked" if found.unchecked else "",
    ]
    return ", ".join(filter(None, parts))


def not_judged(now: Snapshot) -> str:
    """Say in which stages of an audited run a liar could not be convicted; empty: in none."""
    if now.audits is None:
        return ""
    serving = {s.stage: sum(r.state == "serving" for r in s.replicas) for s in now.stages}
    small = [str(stage) for stage, count in serving.items() if count < LEAST_TO_CONVICT]
    if not small:
        return ""
    where = f"stage{'s' if len(small) > 1 else ''} {', '.join(small)}"
    return f"nobody can be convicted in {where}: that takes {LEAST_TO_CONVICT} volunteers a stage"


def next_step(out: ExpelledView) -> str:
    """Return where to see why somebody was expelled."""
    if out.by == "inviter":
        return "volunteer status members"
    return "volunteer evidence save FILE, which anybody can verify"
