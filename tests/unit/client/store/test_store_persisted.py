"""Records on disk: damage is told apart from nothing, and is neither overwritten nor told twice."""

from pathlib import Path

import pytest
from msgspec import Struct

from client.store.persisted import MAX_FILE_BYTES, SET_ASIDE, DamagedFile, Persisted


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
    assert "make room" in told[0]
    with pytest.raises(FileExistsError):
        blocked.save(Note(7))
