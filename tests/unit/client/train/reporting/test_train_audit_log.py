"""What audits came to is counted in all and by member."""

from __future__ import annotations

import pytest

from client.control.snapshot import AuditCounts
from client.train.reporting.audit_log import MAX_MEMBERS, AuditLog
from protocol.audit.record import Grade
from protocol.ids import PeerId
from protocol.rounds.effects import Contributions
from protocol.seat.effects import Audited


def audited(name: str, grade: Grade | None) -> Audited:
    return Audited(1, PeerId(name), 7, grade, "what was found")


def test_results_are_counted_in_all_and_by_member() -> None:
    log = AuditLog()
    log.note(Contributions(3))
    for name, grade in (("anna", Grade.AGREES), ("boris", Grade.LIES), ("anna", None)):
        log.note(audited(name, grade))
    assert (log.contributions, log.results) == (3, AuditCounts(agree=1, disagree=1, unchecked=1))
    assert log.members == {
        "boris": (AuditCounts(disagree=1), "stage 1, step 7: what was found"),
        "anna": (AuditCounts(agree=1, unchecked=1), ""),
    }


@pytest.mark.parametrize("grade", [grade for grade in Grade if grade is not Grade.AGREES])
def test_whatever_does_not_agree_disagrees(grade: Grade) -> None:
    log = AuditLog()
    log.note(audited("anna", grade))
    assert log.results == AuditCounts(disagree=1)


def test_members_without_number_are_forgotten_the_oldest_first() -> None:
    log = AuditLog()
    for number in range(MAX_MEMBERS + 2):
        log.note(audited(f"member-{number}", Grade.LIES))
    log.note(audited("member-2", Grade.LIES))
    assert list(log.members)[0 :: MAX_MEMBERS - 1] == ["member-3", "member-2"]
