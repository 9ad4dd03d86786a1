"""Numbers and marks on disk: damage is told apart from nothing, and no number comes twice."""

from pathlib import Path

import pytest

from client.store.marks import DamagedMarks, Kept, MarksFile
from client.store.numbers import AHEAD, Numbers
from protocol.decree.elector import MAX_TERMS, Term
from protocol.evidence.word import Mark
from protocol.limits import MAX_ELECTORS, MAX_REPLICAS_IN_ROUND
from protocol.wire.parts import Decree
from protocol.wire.statement import Statement


def test_numbers_rise_over_a_restart_with_the_clock_set_back(tmp_path: Path) -> None:
    path = tmp_path / "evidence" / "x.number"
    numbers = Numbers(path)
    used = [numbers.next(5_000_000), numbers.next(1), numbers.next(5_000_000 + 2 * AHEAD)]
    assert used == sorted(set(used))
    again = Numbers(path)  # after a crash: nothing is said at the end
    assert again.next(1_000) > max(used)


def test_numbers_are_written_before_they_are_given_out(tmp_path: Path) -> None:
    path = tmp_path / "x.number"
    numbers = Numbers(path)
    for at_least in range(1, 5 * AHEAD, AHEAD // 3):
        assert numbers.next(at_least) < int(path.read_bytes())


@pytest.mark.parametrize("content", [b"", b"x", b"-5", b"9" * 31, b"\xff\x00"])
def test_a_damaged_number_is_none(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.number"
    path.write_bytes(content)
    assert Numbers(path).next(7) == 7


def test_a_full_disk_stops_nothing(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_bytes(b"")
    numbers = Numbers(blocked / "x.number")
    assert [numbers.next(7), numbers.next(7)] == [7, 8]


def test_marks_survive_the_process_and_damage_is_told(tmp_path: Path) -> None:
    path = tmp_path / "evidence" / "x.marks"
    file = MarksFile(path)
    assert file.read() is None
    many = [Mark("plan", Statement(1, era, 7, 2, b"d" * 32)) for era in range(9)]
    terms = [Term(1, era, 7, 2, "leader", 2, None) for era in range(9)]
    file.write(Kept(many, "one boot", terms))
    file.write(Kept(many[:2], "another", terms[:2]))  # shorter than what was there
    assert MarksFile(path).read() == Kept(many[:2], "another", terms[:2])
    whole = path.read_bytes()
    for wrong in (whole[:10], whole[:30], whole[:40] + b"\xff" + whole[41:]):
        path.write_bytes(wrong)
        with pytest.raises(DamagedMarks):
            file.read()


def test_the_largest_terms_fit_into_the_file(tmp_path: Path) -> None:
    peers = tuple(f"{number:064d}" for number in range(MAX_REPLICAS_IN_ROUND))
    ready, electors = (bytes(64),) * len(peers), peers[:MAX_ELECTORS]
    decree = Decree(2**31 - 1, b"d" * 32, peers, electors, 0.0, ready)
    terms = [Term(1, era, 7, 2, peers[0], 2, decree, peers, electors) for era in range(MAX_TERMS)]
    file = MarksFile(tmp_path / "x.marks")
    file.write(Kept([], "one boot", terms))
    assert file.read() == Kept([], "one boot", terms)
