"""The owner's pause outlives the process and ends at its time; holds come and go beside it."""

from pathlib import Path

import trio

from client.store.paths import Entry
from client.train.machine.pausing import BY_OWNER, Pauses
from protocol.effects import Explain


def _pauses(folder: Path, said: list[Explain] | None = None) -> Pauses:
    start = trio.current_time()
    told = said if said is not None else []
    return Pauses(folder, told.append, lambda: 1000.0 + trio.current_time() - start)


async def test_a_pause_outlives_the_process(tmp_path: Path) -> None:
    _pauses(tmp_path).pause(None, "")
    again = _pauses(tmp_path)
    assert (again.now.reason, again.now.until) == (BY_OWNER, None)
    assert again.resume()
    assert not again.resume()
    assert _pauses(tmp_path).now is None


async def test_it_ends_at_its_time(nursery: trio.Nursery, tmp_path: Path) -> None:
    pauses = _pauses(tmp_path)
    nursery.start_soon(pauses.run)
    pauses.pause(1060.0, "a call")
    begun = trio.current_time()
    await pauses.wait_clear()
    assert 60 <= trio.current_time() - begun <= 62
    assert not (tmp_path / Entry.PAUSED).exists()


async def test_one_whose_time_went_by_while_we_were_off_is_over(tmp_path: Path) -> None:
    Pauses(tmp_path, lambda said: None, lambda: 1000.0).pause(1500.0, "")
    assert Pauses(tmp_path, lambda said: None, lambda: 1400.0).now is not None
    assert Pauses(tmp_path, lambda said: None, lambda: 1600.0).now is None


async def test_a_hold_stays_when_the_owner_resumes_and_is_not_kept(tmp_path: Path) -> None:
    said: list[Explain] = []
    pauses = _pauses(tmp_path, said)
    pauses.hold("battery", "on battery")
    pauses.hold("battery", "on battery")
    pauses.pause(None, "a film")
    assert (pauses.now.reason, pauses.now.by_owner) == ("a film", True)
    pauses.resume()
    assert (pauses.now.reason, pauses.now.by_owner) == ("on battery", False)
    assert _pauses(tmp_path).now is None
    pauses.release("battery")
    pauses.release("battery")
    assert pauses.now is None
    assert [one.words for one in said] == [
        "paused: on battery",
        "paused: a film",
        "still paused: on battery",
        "resumed",
    ]


async def test_a_damaged_file_is_no_pause_and_a_full_disk_no_end(tmp_path: Path) -> None:
    (tmp_path / Entry.PAUSED).write_bytes(b"\xff{")
    assert _pauses(tmp_path).now is None
    said: list[Explain] = []
    (tmp_path / "file").touch()
    lost = _pauses(tmp_path / "file", said)
    lost.pause(None, "")
    assert lost.now is not None
    assert any(one.level == "error" for one in said)
