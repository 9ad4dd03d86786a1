"""The training text: copied from members who have it, and asked for in words where nobody has."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from client.control.snapshot import Snapshot
from client.node.status import take_snapshot
from client.train.transfer.blobs import blob_of_file
from client.train.transfer.text_search import ASK_AGAIN_S, PATIENCE_S
from protocol.effects import Effect, Explain
from protocol.ids import Stage
from tests.support.train_swarm import ADVERT, RecordingEngine, TestSwarm, Volunteer, open_swarm


@pytest.fixture
def warned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Warnings about transfers."""
    words: list[str] = []
    perform = RecordingEngine.perform

    def listen(engine: RecordingEngine, effect: Effect) -> None:
        if isinstance(effect, Explain) and (effect.topic, effect.level) == ("transfer", "warning"):
            words.append(effect.words)
        perform(engine, effect)

    monkeypatch.setattr(RecordingEngine, "perform", listen)
    return words


def text_of(volunteer: Volunteer) -> Path:
    return volunteer.held_stages._context.terms.folders.data


def snapshot(volunteer: Volunteer) -> Snapshot:
    return take_snapshot(volunteer.engine, volunteer.held_stages, 0.0, stopping=False)


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


async def test_where_nobody_has_the_text_everybody_is_told_the_same(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, warned: list[str]
) -> None:
    async with open_swarm(tmp_path) as swarm:
        alone, other = await swarm.add(text=False), await swarm.add(text=False)
        for volunteer in (alone, other):
            volunteer.engine.describe(ADVERT, has_text=False)
        await trio.sleep(2 * ASK_AGAIN_S)
        words = snapshot(alone).reason
        assert "the text text is missing: join with --data FILE" in words
        assert swarm.manifest.data.digest[:12] in words
        assert snapshot(alone).state == snapshot(other).state == "waiting"
        assert snapshot(alone).lacks_text
        assert warned == [words, words], "each says it once"
        assert alone.engine.text.unable() == {Stage(0): words}
        alone.assign(0)
        await swarm.until(lambda: 0 not in alone.held_stages.held)
        assert alone.held_stages.failure is None, "it stays: somebody may come who has the text"


async def test_stage_0_is_left_for_a_while_to_who_has_the_text(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with open_swarm(tmp_path) as swarm:
        lacking = await swarm.add(text=False)
        lacking.engine.describe(ADVERT, has_text=False)
        await trio.sleep(2 * ASK_AGAIN_S)
        assert snapshot(lacking).lacks_text
        having = await swarm.add()
        blob = blob_of_file("data", 0, 0, tmp_path / "text")
        having.engine.shelf.put(blob, tmp_path / "text", temporary=False)
        await swarm.until(lambda: not snapshot(lacking).lacks_text)
        await trio.sleep(PATIENCE_S)
        assert lacking.engine.text.unable() == {}
        swarm.vanish(having)
        await swarm.until(lambda: snapshot(lacking).lacks_text)
        assert list(lacking.engine.text.unable()) == [Stage(0)]


async def test_who_waits_for_a_stage_comes_first_only_while_stage_0_is_not_served(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with open_swarm(tmp_path) as swarm:
        founder = await swarm.add(0)
        await swarm.until(lambda: founder.serves(0))
        lacking = await swarm.add(text=False)
        lacking.engine.describe(ADVERT, has_text=False)
        await swarm.until(lambda: lacking.engine.text.unable() == {})
        assert lacking.engine.text.donors() == [founder.engine.signer.peer]
