"""Who offers training data, question by question."""

from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace

from client.store.texts import TextStore
from client.train.transfer.blobs import Downloads
from client.train.transfer.leaf_supply import ASK_AGAIN_S, MOST_DONORS, LeafSupply
from model_zoo.specs.data import DataSpec
from protocol.ids import PeerId, Stage
from protocol.wire.messages import Chunk, ChunkRequest
from tests.support.protocol_examples import manifest, peer
from tests.support.recording_ports import RecordingPorts

DATA = DataSpec("novel.txt", 4_200_000, "ab" * 32)
ROOT = bytes.fromhex(DATA.digest)
QUERY = ChunkRequest(ROOT, None)
ONE, OTHER, *MANY = (peer(n) for n in range(8))
STAGE_0 = Stage(0)


class Asked(RecordingPorts):
    """A clock, the members that are linked, and what becomes of all questions."""

    def __init__(self, folder: Path) -> None:
        super().__init__(run=replace(manifest(), data=DATA))
        self.links, self.changes = {ONE, OTHER}, 0
        self.supply = LeafSupply(self, TextStore(folder), [], 2**30)
        self.downloads = Downloads(cast(Any, self))
        self.downloads.add(self.supply)

    def ability_changed(self) -> None:
        self.changes += 1

    async def finds(self) -> None:
        """Look for the data, which are on this disk."""
        self.supply._find = partial(setattr, self.supply, "_whole", "here")
        await self.supply.open()

    def offers(self, who: PeerId, root: bytes = ROOT) -> None:
        self.downloads.receive(who, Chunk(root, None), b"some")

    def changed(self) -> bool:
        """Whether others were told of a change since the last question."""
        found, self.changes = self.changes > 0, 0
        return found


@pytest.fixture
async def asked(tmp_path: Path) -> Asked:
    """One that has just begun to lack the text."""
    made = Asked(tmp_path)
    await made.supply.open()
    assert made.changed()
    return made


async def test_what_is_here_is_not_asked_for(tmp_path: Path) -> None:
    made = Asked(tmp_path)
    await made.finds()
    assert made.supply._ask_at == float("inf")
    assert made.supply.unable() == {}
    made.supply.linked(ONE)
    made.offers(ONE)
    assert made.sent == []
    assert not made.supply.offering


async def test_all_members_are_asked_and_asked_again_until_one_offers(asked: Asked) -> None:
    assert asked.sent == [(who, QUERY) for who in sorted((ONE, OTHER))]
    assert asked.supply._ask_at == 100.0 + ASK_AGAIN_S
    await asked.supply.open()
    assert len(asked.sent) == 2, "it is known"
    asked.time = 100.0 + ASK_AGAIN_S
    asked.supply._ask_again(asked.time)
    assert len(asked.sent) == 4
    assert asked.supply._ask_at == 100.0 + 2 * ASK_AGAIN_S
    asked.supply._ask_again(asked.time + 0.1)
    assert len(asked.sent) == 4
    asked.supply.linked(MANY[0])
    assert asked.sent[4:] == [(MANY[0], QUERY)]
    asked.offers(ONE)
    assert asked.changed()
    asked.supply._ask_again(asked.time + ASK_AGAIN_S)
    assert len(asked.sent) == 5


async def test_the_owner_is_told_once_after_the_first_question(asked: Asked) -> None:
    assert asked.supply.unable() == {STAGE_0: "asking members for the training data"}
    assert asked.supply.problem == ""
    for number in range(1, 4):
        asked.time = 100.0 + number * ASK_AGAIN_S
        asked.supply._ask_again(asked.time)
    (words,) = asked.warnings()
    assert words == (
        "the training data novel.txt are missing: join with --data FOLDER, or wait for a member "
        "who has them (4.2 MB, root begins with abababababab)"
    )
    assert asked.supply.problem == words
    assert asked.supply.unable() == {STAGE_0: words}
    asked.offers(ONE)
    (said,) = [one for one in asked.told() if one.members]
    assert (said.members, said.level) == ((ONE,), "info")
    assert asked.supply.problem == ""
    asked.offers(OTHER)
    assert len(asked.told()) == 2


async def test_while_one_of_several_offers_it_nobody_is_asked(asked: Asked) -> None:
    for who in (ONE, OTHER):
        asked.offers(who)
    asked.changed()
    asked.offers(ONE)
    assert not asked.changed(), "that is known"
    asked.supply.lost(MANY[0])
    assert not asked.changed()
    asked.supply.lost(ONE)
    assert asked.changed()
    assert asked.supply.offering == {OTHER}
    asked.supply._ask_again(100.0 + ASK_AGAIN_S)
    assert len(asked.sent) == 2
    asked.time = 103.0
    asked.downloads.receive(OTHER, Chunk(ROOT, None))
    assert not asked.supply.offering
    assert asked.supply._ask_at == 103.0 + ASK_AGAIN_S


async def test_beside_a_few_that_offer_it_no_more_are_asked(asked: Asked) -> None:
    offering = (ONE, OTHER, *MANY)
    for who in offering[: MOST_DONORS - 1]:
        asked.offers(who)
    assert sorted(asked.supply.offering) == sorted(offering[: MOST_DONORS - 1])
    asked.supply.linked(MANY[-1])
    assert len(asked.sent) == 3
    for who in offering:
        asked.offers(who)
    assert asked.supply.offering == frozenset(offering)
    asked.supply.linked(MANY[-1])
    assert len(asked.sent) == 3


async def test_an_answer_about_something_else_changes_nothing(asked: Asked) -> None:
    asked.offers(ONE)
    asked.offers(OTHER, bytes(32))
    asked.downloads.receive(ONE, Chunk(bytes(32), None))
    asked.downloads.receive(ONE, Chunk(ROOT, 0))
    assert asked.supply.offering == {ONE}
    assert asked.done == []


async def test_once_it_is_found_the_search_is_over(asked: Asked) -> None:
    asked.time += ASK_AGAIN_S
    asked.supply._ask_again(asked.time)
    asked.offers(ONE)
    asked.supply.lost(ONE)
    asked.supply._note_supply(fetching=True, starved=True)
    warned = len(asked.warnings())
    asked.changed()
    await asked.finds()
    assert asked.changed()
    assert not asked.supply.starved
    assert (asked.supply.problem, asked.supply.unable()) == ("", {})
    assert asked.supply._ask_at == float("inf")
    asked.supply._ask_again(asked.time + ASK_AGAIN_S)
    assert len(asked.warnings()) == warned


async def test_stage_0_that_fetches_as_it_goes_needs_no_text(asked: Asked) -> None:
    asked.supply._note_supply(fetching=True, starved=False)
    assert asked.changed()
    assert asked.supply.unable() == {}
    asked.supply._ask_again(100.0 + ASK_AGAIN_S)
    assert asked.warnings() == []
    asked.changed()
    asked.supply._note_supply(fetching=True, starved=False)
    assert not asked.changed()
    for _ in range(2):
        asked.supply._note_supply(fetching=True, starved=True)
    assert asked.changed()
    assert asked.supply.starved
    assert asked.warnings() == [asked.supply.problem]
    asked.supply._note_supply(fetching=False, starved=False)
    assert asked.changed()
    assert not asked.supply.starved
    assert list(asked.supply.unable()) == [STAGE_0]
