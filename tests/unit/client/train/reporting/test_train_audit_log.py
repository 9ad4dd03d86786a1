"""What audits came to is counted by day and by member, and kept over restarts."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest
import trio
import trio.testing

from client.control.snapshot import AuditCounts
from client.store.records import MAX_MEMBERS
from client.store.saving import save_every_minute
from client.train.reporting.audit_log import AuditLog
from protocol.audit.record import Grade
from protocol.ids import PeerId
from protocol.seat.effects import Audited, Contributions

MONDAY, TUESDAY = date(2026, 3, 2), date(2026, 3, 3)


def audited(name: str, grade: Grade | None) -> Audited:
    return Audited(1, PeerId(name), 7, grade, "what was found")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "evidence" / "swarm.audits"


def test_results_are_counted_today_and_by_member() -> None:
    log = AuditLog(today=lambda: MONDAY)
    log.note(Contributions(3))
    for name, grade in (("anna", Grade.AGREES), ("boris", Grade.LIES), ("anna", None)):
        log.note(audited(name, grade))
    kept = log.kept()
    assert (kept.contributions, kept.today) == (3, AuditCounts(agree=1, disagree=1, unchecked=1))
    assert {one.peer: (one.tally, one.fault) for one in kept.members} == {
        "boris": (AuditCounts(disagree=1), "stage 1, step 7: what was found"),
        "anna": (AuditCounts(agree=1, unchecked=1), ""),
    }


@pytest.mark.parametrize("grade", [grade for grade in Grade if grade is not Grade.AGREES])
def test_whatever_does_not_agree_disagrees(grade: Grade) -> None:
    log = AuditLog()
    log.note(audited("anna", grade))
    assert log.since_start == AuditCounts(disagree=1)


async def test_a_restart_forgets_nothing_of_the_day(path: Path) -> None:
    log = AuditLog(path, lambda: MONDAY)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(save_every_minute, [log.save])
        await trio.testing.wait_all_tasks_blocked()
        log.note(Contributions(2))
        log.note(audited("anna", Grade.AGREES))
        nursery.cancel_scope.cancel()
    again = AuditLog(path, lambda: MONDAY)
    assert again.kept() == log.kept()
    assert again.kept().today == AuditCounts(agree=1)
    assert (again.contributions, again.since_start) == (0, AuditCounts())


def test_a_new_day_begins_with_nothing_and_keeps_the_members(path: Path) -> None:
    day = MONDAY
    log = AuditLog(path, lambda: day)
    log.note(Contributions(2))
    log.note(audited("anna", Grade.AGREES))
    log.save()
    day = TUESDAY
    for one in (log, AuditLog(path, lambda: day)):
        kept = one.kept()
        assert (kept.day, kept.contributions, kept.today) == (TUESDAY, 0, AuditCounts())
        assert [(one.peer, one.tally) for one in kept.members] == [("anna", AuditCounts(agree=1))]


DAMAGED = (b"", b"\xff", b'{"day": "2026-03-02", "today": {"agree": -1}}')


@pytest.mark.parametrize("content", DAMAGED)
def test_a_damaged_file_counts_as_empty(path: Path, content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    assert AuditLog(path, lambda: MONDAY).kept().members == ()


def test_members_without_number_are_forgotten_the_oldest_first(path: Path) -> None:
    log = AuditLog(path, lambda: MONDAY)
    for number in range(MAX_MEMBERS + 2):
        log.note(audited(f"member-{number}", Grade.LIES))
    log.note(audited("member-2", Grade.LIES))
    log.save()
    members = AuditLog(path, lambda: MONDAY).kept().members
    assert (members[0].peer, members[-1].peer) == ("member-3", "member-2")
    assert len(members) == MAX_MEMBERS


def test_a_full_disk_does_not_stop_training(tmp_path: Path) -> None:
    (tmp_path / "evidence").write_text("no folder")
    AuditLog(tmp_path / "evidence" / "swarm.audits").save()
