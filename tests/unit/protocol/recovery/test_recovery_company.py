"""The members that may have newer copies than we; a swarm that continues where none can."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest

from client.store.persisted import Persisted
from client.store.records import COMPANY, Companions
from protocol.effects import Explain
from protocol.ids import PeerId, peer_id_from_key
from protocol.recovery.company import MAX_COMPANIONS, Companion, Company
from protocol.recovery.machine import (
    BRIEF_PATIENCE_S,
    PATIENCE_S,
    SETTLE_S,
    TURN_S,
    Adopt,
    Recovery,
    RecoveryContext,
    RecoveryEffect,
)
from protocol.recovery.stored import Copy, Lineage, Stored

ME, FRIEND, STRANGER, GONE = [peer_id_from_key(bytes([n]) * 32) for n in range(4)]
FIRST = Lineage(1, electors=(ME,))
EVERY = 50


def stayed(_: PeerId) -> bool:
    return False


def left(_: PeerId) -> bool:
    return True


class TestCompany:
    def test_who_is_there_may_go_on_after_us(self) -> None:
        company = Company()
        assert company.update({FRIEND}, 10, stayed)
        assert company.ahead(10) == {FRIEND}
        assert company.ahead(1000) == {FRIEND}

    def test_who_said_goodbye_has_what_there_was_then(self) -> None:
        company = Company()
        company.update({FRIEND}, 10, stayed)
        assert company.update((), 12, left)
        assert company.ahead(11) == {FRIEND}
        assert company.ahead(12) == frozenset()

    def test_who_fell_silent_may_have_gone_on_as_long_as_we_have_not(self) -> None:
        company = Company()
        company.update({FRIEND}, 10, stayed)
        company.update((), 12, stayed)
        assert company.ahead(12) == {FRIEND}
        assert company.ahead(13) == frozenset()

    def test_who_goes_before_it_is_known_where_the_run_stands_counts_as_unseen(self) -> None:
        company = Company([Companion(FRIEND)])
        company.update({FRIEND}, None, stayed)
        assert not company.update((), None, left)
        assert company.ahead(1000) == {FRIEND}

    def test_the_run_goes_on_without_who_was_not_seen_again(self) -> None:
        company = Company([Companion(FRIEND)])
        assert company.update((), 20, stayed)
        assert company.ahead(20) == {FRIEND}
        assert company.ahead(21) == frozenset()

    def test_a_view_in_which_nobody_came_or_went_is_not_written_down(self) -> None:
        company = Company()
        company.update({FRIEND}, 10, stayed)
        assert not company.update({FRIEND}, 11, stayed)

    def test_what_is_dropped_of_a_crowd_is_remembered_as_a_nameless_one(self) -> None:
        company = Company()
        crowd = {PeerId(f"p{n}") for n in range(2 * MAX_COMPANIONS)}
        company.update(crowd, 10, stayed)
        assert len(company.companions()) <= MAX_COMPANIONS
        company.update((), 10, left)
        company.update({FRIEND}, 30, stayed)
        company.update((), 31, left)
        assert "" in company.ahead(1000), "somebody was there whose end we did not see"


class TestFile:
    def test_it_survives_the_disk(self, tmp_path: Path) -> None:
        known = (Companion(FRIEND, 12, True), Companion(STRANGER))
        file = Persisted(tmp_path / "swarm" / COMPANY, Companions)
        file.save(known)
        assert file.read() == known

    @pytest.mark.parametrize(
        "data", [b"", b"\xff" * 40, msgspec.msgpack.encode([["x", -1, False]]), b"\x91\x93\xa1\xff"]
    )
    def test_what_is_damaged_is_none(self, tmp_path: Path, data: bytes) -> None:
        (tmp_path / COMPANY).write_bytes(data)
        assert Persisted(tmp_path / COMPANY, Companions).peek() is None


def copies(*held: tuple[int, int]) -> list[Copy]:
    return [Copy(stage, version, bytes([stage, version]) + bytes(30)) for stage, version in held]


BOTH = copies((0, 156), (1, 156))


def back(company: Iterable[Companion] | None, own: list[Copy] = BOTH) -> Recovery:
    """One that comes back with copies, having met three others in earlier sessions."""
    known = None if company is None else Company(company)
    made = Recovery(ME, 2, EVERY, FIRST, 7, met=[FRIEND, STRANGER, GONE], company=known)
    made.set_copies(own, 0.0)
    return made


def seen(*live: PeerId) -> RecoveryContext:
    return RecoveryContext(frozenset(live), (None, None))


def begun(effects: Iterable[RecoveryEffect]) -> int | None:
    return next((e.lineage.version for e in effects if isinstance(e, Adopt)), None)


class TestResume:
    def test_alone_where_the_others_had_left_before(self) -> None:
        made = back([Companion(FRIEND, 156, True), Companion(STRANGER, 20)])
        made.update(seen(ME), 0.0)
        assert begun(made.tick(SETTLE_S)) == 156

    @pytest.mark.parametrize(
        "friend", [Companion(FRIEND), Companion(FRIEND, 156), Companion(FRIEND, 157, True)]
    )
    def test_alone_it_waits_for_who_may_have_gone_on(self, friend: Companion) -> None:
        made = back([friend])
        made.update(seen(ME), 0.0)
        effects = made.tick(SETTLE_S)
        assert begun(effects) is None
        assert made.waiting is not None
        assert made.waiting.until == SETTLE_S + PATIENCE_S
        words = next(e.words for e in effects if isinstance(e, Explain))
        assert f"waiting up to {PATIENCE_S:.0f} s for {FRIEND[-6:]}" in words
        assert "version 156" in words
        assert begun(made.tick(SETTLE_S + PATIENCE_S - 0.1)) is None
        assert begun(made.tick(SETTLE_S + PATIENCE_S)) == 156
        assert made.waiting is None

    def test_without_a_word_about_the_others_it_waits_as_ever(self) -> None:
        made = back(None)
        made.update(seen(ME), 0.0)
        assert begun(made.tick(SETTLE_S)) is None
        assert made.waiting is not None
        assert "for those who may have a newer one" in made.waiting.what

    def test_with_all_who_were_there_though_one_has_more(self) -> None:
        """The other one was killed before it had written down the last versions."""
        made = back([Companion(FRIEND), Companion(STRANGER, 20)], copies((0, 156), (0, 150)))
        made.receive(FRIEND, Stored(FIRST, tuple(copies((1, 150)))), 0.0)
        made.update(seen(ME, FRIEND), 0.0)
        late = SETTLE_S + TURN_S
        assert late < BRIEF_PATIENCE_S
        assert begun([*made.tick(SETTLE_S), *made.tick(late)]) == 150

    def test_not_before_those_have_said_what_they_have(self) -> None:
        made = back([Companion(FRIEND)])
        made.update(seen(ME, FRIEND), 0.0)
        assert begun(made.tick(SETTLE_S)) is None
        assert begun(made.tick(SETTLE_S + TURN_S)) is None, "their record is on its way"

    def test_what_we_know_of_our_end_says_nothing_where_others_went_on(self) -> None:
        made = back([Companion(FRIEND, 150, True)])
        newer = Stored(FIRST, tuple(copies((0, 200), (1, 156))))
        made.receive(STRANGER, newer, 0.0)
        made.update(seen(ME, STRANGER), 0.0)
        early = SETTLE_S + BRIEF_PATIENCE_S - 0.1
        assert begun([*made.tick(SETTLE_S), *made.tick(early)]) is None

    def test_more_than_a_checkpoint_interval_is_not_thrown_away_at_once(self) -> None:
        made = back([Companion(FRIEND)], copies((0, 156), (0, 100)))
        made.receive(FRIEND, Stored(FIRST, tuple(copies((1, 100)))), 0.0)
        made.update(seen(ME, FRIEND), 0.0)
        late = SETTLE_S + TURN_S
        assert begun([*made.tick(SETTLE_S), *made.tick(late)]) is None

    def test_going_on_where_the_swarm_was_shut_down_is_no_warning(self) -> None:
        made = back([])
        made.update(seen(ME), 0.0)
        told = [e for e in made.tick(SETTLE_S) if isinstance(e, Explain)]
        assert [e.level for e in told] == ["info"]
