"""Records and marks on disk: damage is told apart from nothing."""

from pathlib import Path

import pytest
from msgspec import Struct

from client.store.marks import Kept, MarksFile
from client.store.persisted import MAX_FILE_BYTES, SET_ASIDE, DamagedFile, Persisted
from protocol.decree.elector import MAX_TERMS, Term
from protocol.evidence.word import Mark
from protocol.limits import MAX_ELECTORS, MAX_REPLICAS_IN_ROUND
from protocol.wire.parts import Decree
from protocol.wire.statement import Statement


class Note(Struct, frozen=True):
    number: int
    words: str = ""


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture(params=["x.json", "x.bin"])
def file(request: pytest.FixtureRequest, tmp_path: Path, told: list[str]) -> Persisted[Note]:
    return Persisted(tmp_path / "folder" / request.param, Note, told.append)


def test_a_record_survives_and_its_owner_alone_can_read_it(
    file: Persisted[Note], told: list[str]
) -> None:
    assert file.read() is None
    assert file.load() is None
    file.save(Note(7, "words"))
    assert file.load() == file.read() == file.peek() == Note(7, "words")
    assert file.path.stat().st_mode & 0o777 == 0o600
    assert told == []
    file.remove()
    file.remove()
    assert file.peek() is None


def test_every_truncation_is_damage(file: Persisted[Note]) -> None:
    file.save(Note(7, "words"))
    whole = file.path.read_bytes()
    for size in range(len(whole)):
        file.path.write_bytes(whole[:size])
        with pytest.raises(DamagedFile):
            file.read()
        assert file.peek() is None
    file.path.write_bytes(bytes(MAX_FILE_BYTES + 1))
    with pytest.raises(DamagedFile, match="longer"):
        file.read()


def test_damage_is_set_aside_and_told_once(file: Persisted[Note], told: list[str]) -> None:
    file.save(Note(7))
    file.path.write_bytes(b"nonsense")
    assert [file.load() for _ in range(2)] == [None, None]
    assert ["set aside" in words for words in told] == [True]
    aside = file.path.with_name(file.path.name + SET_ASIDE)
    assert aside.read_bytes() == b"nonsense"


def test_a_record_of_no_use_is_set_aside_with_the_reason(
    file: Persisted[Note], told: list[str]
) -> None:
    file.save(Note(7))
    assert file.load(lambda note: f"{note.number} is odd") is None
    assert "7 is odd" in told[0]
    assert not file.path.exists()


def test_a_folder_that_cannot_be_written_is_told_and_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    blocked = Persisted(tmp_path / "file" / "x.bin", Note, (told := list[str]()).append)
    assert not blocked.keep(Note(7))
    assert blocked.load() is None
    assert ["make room" in told[0], "cannot be read" in told[1]] == [True, True]
    with pytest.raises(FileExistsError):
        blocked.save(Note(7))


# --- marks ------------------------------------------------------------------------------------


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
        with pytest.raises(DamagedFile):
            file.read()


def test_the_largest_terms_fit_into_the_file(tmp_path: Path) -> None:
    peers = tuple(f"{number:064d}" for number in range(MAX_REPLICAS_IN_ROUND))
    ready, electors = (bytes(64),) * len(peers), peers[:MAX_ELECTORS]
    decree = Decree(2**31 - 1, b"d" * 32, peers, electors, 0.0, ready)
    terms = [Term(1, era, 7, 2, peers[0], 2, decree, peers, electors) for era in range(MAX_TERMS)]
    file = MarksFile(tmp_path / "x.marks")
    file.write(Kept([], "one boot", terms))
    assert file.read() == Kept([], "one boot", terms)
