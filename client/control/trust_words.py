"""Audits and expulsions in words, the same for every front end."""

from __future__ import annotations

from client.control.snapshot import AuditCounts, AuditsView, ExpelledView


def audits_today(audits: AuditsView) -> str:
    """Return today's audits: ``3 of 412 contributions audited today, all agree``."""
    found = f", {audit_results(audits.today)}" if audits.today.drawn else ""
    of = audits.contributions_today
    return f"{audits.today.drawn} of {of} contributions audited today{found}"


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


def next_step(out: ExpelledView) -> str:
    """Return where to see why somebody was expelled."""
    if out.by == "inviter":
        return "volunteer members"
    return "volunteer evidence save FILE, which anybody can verify"
