"""The training text: copied from members who have it, and asked for in words where nobody has."""

from __future__ import annotations

from pathlib import Path

import trio

from client.train.transfer.blobs import blob_of_file
from tests.support.train_swarm import TestSwarm, Volunteer, open_swarm


def text_of(volunteer: Volunteer) -> Path:
    return volunteer.held_stages._context.terms.folders.data


async def lie(swarm: TestSwarm, text: bytes) -> Volunteer:
    """A member that offers another text than the swarm's."""
    liar = await swarm.add(text=False)
    path = text_of(liar)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text)
    liar.engine.shelf.put(blob_of_file("data", 0, 0, path), path, temporary=False)
    return liar


async def test_who_lacks_the_text_copies_it_and_trains(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with open_swarm(tmp_path) as swarm:
        founder = await swarm.add(0)
        await swarm.add(1)
        swarm.start()
        await swarm.until(lambda: founder.step(0) >= 1)
        newcomer = await swarm.add(0, text=False)
        await swarm.until(lambda: newcomer.serves(0))
        assert text_of(newcomer).read_bytes() == (tmp_path / "text").read_bytes()
        await swarm.until_done()
        assert not newcomer.engine.text.missing
        swarm.assert_exact()


async def test_who_copied_the_text_gives_it_to_others(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with open_swarm(tmp_path, steps=200) as swarm:
        founder = await swarm.add(0)
        await swarm.until(lambda: founder.serves(0))
        second = await swarm.add(0, text=False)
        await swarm.add(1)
        swarm.start()
        await swarm.until(lambda: second.serves(0) and second.step(0) >= 1)
        swarm.vanish(founder)  # others elect now; at first it was the only one
        third = await swarm.add(0, text=False)
        await swarm.until(lambda: third.serves(0))
        assert text_of(third).read_bytes() == (tmp_path / "text").read_bytes()


async def test_another_text_costs_who_gave_it_and_the_right_one_is_found(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with open_swarm(tmp_path) as swarm:
        founder = await swarm.add(0)
        await swarm.add(1)
        right = (tmp_path / "text").read_bytes()
        await lie(swarm, right[:-1] + b"!")
        await lie(swarm, right + b"longer")
        swarm.start()
        await swarm.until(lambda: founder.step(0) >= 1)
        founder.engine.shelf._items.clear()  # it hesitates: the liars are asked first
        newcomer = await swarm.add(0, text=False)
        penalties = newcomer.engine.penalties
        await swarm.until(lambda: penalties["text-of-wrong-digest"])
        assert not text_of(newcomer).exists(), "nothing is kept that is not the swarm's text"
        blob = blob_of_file("data", 0, 0, tmp_path / "text")
        founder.engine.shelf.put(blob, tmp_path / "text", temporary=False)
        newcomer.assign(0)
        await swarm.until(lambda: newcomer.serves(0))
        assert text_of(newcomer).read_bytes() == right
        assert penalties == {"text-of-wrong-digest": 1, "text-of-wrong-size": 1}
        assert newcomer.held_stages.failure is None
