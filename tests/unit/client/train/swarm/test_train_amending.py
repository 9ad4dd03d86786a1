"""Amendments among real engines: told, kept on disk, applied; only the founder's count."""

from pathlib import Path

import pytest
from msgspec import structs

from client.train.swarm.amending import Amending
from protocol import limits
from protocol.amendments.amendment import Amendment, digest_of, sign_amendment
from protocol.amendments.book import Amendments
from protocol.ids import PeerId, SwarmId
from protocol.wire.envelope import Signer
from protocol.wire.fields import Envelope
from protocol.wire.messages import Statements, encode_message
from tests.support.protocol_examples import manifest
from tests.support.recording_ports import RecordingPorts
from tests.support.train_swarm import TestSwarm, Volunteer, open_swarm

SWARM = SwarmId("ab" * 32)
FOUNDER = Signer(b"\x07" * 32)
ONE, TWO = PeerId("one"), PeerId("two")
RUN = manifest(FOUNDER.peer)


def signed(number: int, steps: int = 200) -> Envelope:
    said = Amendment(number, 0, steps, RUN.optimizer)
    return sign_amendment(FOUNDER, said, SWARM)


class Desk(RecordingPorts):
    """The amendments of one volunteer that is linked with two others."""

    def __init__(self, path: Path) -> None:
        super().__init__(run=RUN)
        self.links, self.changes = [ONE, TWO], 0
        self.amending = Amending(self, path, self._changed)

    def _changed(self) -> None:
        self.changes += 1


def test_news_goes_to_all_but_its_bringer_and_once(tmp_path: Path) -> None:
    desk, news = Desk(tmp_path / "a"), [signed(1)]
    desk.amending.receive(ONE, news)
    desk.amending.receive(TWO, news)
    assert desk.sent == [(TWO, Statements("amendments", tuple(news)))]
    assert desk.changes == 1
    [said] = desk.told()
    assert said.words == "the founder says: the run is extended from 100 to 200 steps"


def test_a_new_link_is_told_everything_in_a_message_that_fits(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "a")
    for number in range(1, limits.MAX_AMENDMENTS + 1):
        desk.amending.publish(signed(number, 100 + number))
    desk.sent.clear()
    desk.amending.link_up(ONE)
    [said] = [message for _, message in desk.sent if isinstance(message, Statements)]
    assert len(said.envelopes) == limits.MAX_AMENDMENTS
    assert len(encode_message(said)) < limits.MAX_HEADER_BYTES / 2


def test_of_two_with_one_number_the_owner_is_told_what_counts(tmp_path: Path) -> None:
    desk, both = Desk(tmp_path / "a"), [signed(1), signed(1, steps=300)]
    desk.amending.receive(ONE, sorted(both, key=digest_of))
    said = [one.words for one in desk.told()]
    assert len(said) == 2
    assert f"to {desk.amending.book.steps} steps" in said[1]


def test_they_outlive_the_process(tmp_path: Path) -> None:
    Desk(tmp_path / "a").amending.publish(signed(1))
    assert Desk(tmp_path / "a").amending.book.steps == 200


# --- real engines ----------------------------------------------------------------------------


def founders(swarm: TestSwarm, volunteer: Volunteer, **changes: object) -> Envelope:
    """An amendment of the founder, whose volunteer this is."""
    run, book = swarm.manifest, volunteer.engine.amending.book
    numbers = {name: changes.pop(name) for name in ("lr", "min_lr") if name in changes}
    said = Amendment(
        len(book.counting) + 1,
        0,
        book.steps,
        structs.replace(run.optimizer, **numbers),
    )
    said = structs.replace(said, **changes)
    return sign_amendment(volunteer.engine.signer, said, swarm.file.swarm)


def books(swarm: TestSwarm) -> list[Amendments]:
    return [volunteer.engine.amending.book for volunteer in swarm.volunteers]


@pytest.mark.slow
async def test_all_learn_of_it_and_newcomers_too(tmp_path: Path) -> None:
    async with open_swarm(tmp_path, steps=40, checkpoint_every=20) as swarm:
        founder = await swarm.add(0, founder=True)
        await swarm.add(1)
        await swarm.until(lambda: founder.step(0) >= 3)
        said = founders(swarm, founder, steps=50, lr=5e-4, min_lr=1e-4)
        founder.engine.amending.publish(said)
        await swarm.until(lambda: all(book.counting for book in books(swarm)))
        late = await swarm.add(1)
        await swarm.until(lambda: late.serves(1) and late.step(1) == 50)
        await swarm.until_done()
        assert {book.steps for book in books(swarm)} == {50}
        for volunteer in swarm.volunteers:
            assert volunteer.engine.internal_errors == 0


async def test_a_rate_turns_in_all_stages_at_one_step_through_a_death(tmp_path: Path) -> None:
    """The losses are those of one process that turns there, and not of one that does not."""
    hot = {"lr": 6e-3, "min_lr": 6e-4}
    async with open_swarm(tmp_path, stages=3, steps=15, optimizer="adamw") as swarm:
        founder = await swarm.add(0, founder=True)
        *_, victim = [await swarm.add(stage) for stage in (1, 2, 1)]
        await swarm.until(lambda: victim.step(1) >= 3)
        founder.engine.amending.publish(founders(swarm, founder, from_step=9, **hot))
        swarm.vanish(victim)
        late = await swarm.add(2)
        await swarm.until_done()
        await swarm.until(lambda: late.serves(2))
        swarm.assert_losses((9, structs.replace(swarm.manifest.optimizer, **hot)))
        with pytest.raises(AssertionError):
            swarm.assert_losses()


async def test_what_is_not_the_founders_costs_its_bringer(tmp_path: Path) -> None:
    async with open_swarm(tmp_path, steps=2000, checkpoint_every=20) as swarm:
        founder = await swarm.add(0, founder=True)
        liar = await swarm.add(1)
        await swarm.until(lambda: founder.step(0) >= 1)
        forged = founders(swarm, liar, steps=2)
        liar.engine.send(founder.peer, Statements("amendments", (forged,)))
        await swarm.until(lambda: founder.refused["amendment-not-the-founders"])
        refused = founder.shown().counters.refused_by_reason
        assert refused["amendment-not-the-founders"] == 1
        assert founder.engine.amending.book.steps == 2000
        assert founder.engine.internal_errors == 0
