"""The search for the training text, question by question."""

from typing import Any, cast

import pytest
from msgspec.structs import replace

from client.train.transfer.blobs import Downloads
from client.train.transfer.data_search import ASK_AGAIN_S, MOST_DONORS, DataSearch
from model_zoo.specs.data import DataSpec
from protocol.ids import PeerId, Stage, SwarmId
from protocol.wire.messages import Chunk, ChunkRequest
from tests.support.protocol_examples import SWARM, manifest, peer
from tests.support.recording_ports import RecordingPorts

DATA = DataSpec("novel.txt", 4_200_000, "ab" * 32)
ROOT = bytes.fromhex(DATA.digest)
QUERY = ChunkRequest(ROOT, None)
ONE, OTHER, *MANY = (peer(n) for n in range(8))
STAGE_0 = Stage(0)


class Asked(RecordingPorts):
    """A clock, the members that are linked, and what becomes of all questions."""

    def __init__(self, data: DataSpec = DATA) -> None:
        super().__init__()
        self.links, self.changes = {ONE, OTHER}, 0
        self.search = DataSearch(self, data, self._changed)
        run = replace(manifest(), data=data)
        self.downloads = Downloads(cast(Any, self), run, SwarmId(SWARM))
        self.downloads.add(self.search)

    def _changed(self) -> None:
        self.changes += 1

    def offers(self, who: PeerId, root: bytes = ROOT) -> None:
        self.downloads.receive(who, Chunk(root, None), b"some")

    def changed(self) -> bool:
        """Whether others were told of a change since the last question."""
        found, self.changes = self.changes > 0, 0
        return found

    def warnings(self) -> list[str]:
        return [one.words for one in self.told() if one.level == "warning"]


@pytest.fixture
def asked() -> Asked:
    """One that has just begun to lack the text."""
    made = Asked()
    made.search.lacks()
    assert made.changed()
    return made


def test_what_is_here_is_not_asked_for() -> None:
    made = Asked()
    assert not made.search.missing
    assert made.search.next_deadline() == float("inf")
    assert made.search.unable() == {}
    made.search.linked(ONE)
    made.offers(ONE)
    assert made.sent == []
    assert not made.search.offering


def test_all_members_are_asked_and_asked_again_until_one_offers(asked: Asked) -> None:
    assert asked.sent == [(who, QUERY) for who in sorted((ONE, OTHER))]
    assert asked.search.next_deadline() == 100.0 + ASK_AGAIN_S
    asked.search.lacks()
    assert len(asked.sent) == 2, "it is known"
    asked.time = 100.0 + ASK_AGAIN_S
    asked.search.tick(asked.time)
    assert len(asked.sent) == 4
    assert asked.search.next_deadline() == 100.0 + 2 * ASK_AGAIN_S
    asked.search.tick(asked.time + 0.1)
    assert len(asked.sent) == 4
    asked.search.linked(MANY[0])
    assert asked.sent[4:] == [(MANY[0], QUERY)]
    asked.offers(ONE)
    assert asked.changed()
    asked.search.tick(asked.time + ASK_AGAIN_S)
    assert len(asked.sent) == 5


def test_the_owner_is_told_once_after_the_first_question(asked: Asked) -> None:
    assert asked.search.unable() == {STAGE_0: "asking members for the training data"}
    assert asked.search.problem == ""
    for number in range(1, 4):
        asked.time = 100.0 + number * ASK_AGAIN_S
        asked.search.tick(asked.time)
    (words,) = asked.warnings()
    assert words == (
        "the training data novel.txt are missing: join with --data FOLDER, or wait for a member "
        "who has them (4.2 MB, root begins with abababababab)"
    )
    assert asked.search.problem == words
    assert asked.search.unable() == {STAGE_0: words}
    asked.offers(ONE)
    (said,) = [one for one in asked.told() if one.members]
    assert (said.members, said.level) == ((ONE,), "info")
    assert asked.search.problem == ""
    asked.offers(OTHER)
    assert len(asked.told()) == 2


def test_while_one_of_several_offers_it_nobody_is_asked(asked: Asked) -> None:
    for who in (ONE, OTHER):
        asked.offers(who)
    asked.changed()
    asked.offers(ONE)
    assert not asked.changed(), "that is known"
    asked.search.lost(MANY[0])
    assert not asked.changed()
    asked.search.lost(ONE)
    assert asked.changed()
    assert asked.search.offering == {OTHER}
    asked.search.tick(100.0 + ASK_AGAIN_S)
    assert len(asked.sent) == 2
    asked.time = 103.0
    asked.downloads.receive(OTHER, Chunk(ROOT, None))
    assert not asked.search.offering
    assert asked.search.next_deadline() == 103.0 + ASK_AGAIN_S


def test_beside_a_few_that_offer_it_no_more_are_asked(asked: Asked) -> None:
    offering = (ONE, OTHER, *MANY)
    for who in offering[: MOST_DONORS - 1]:
        asked.offers(who)
    assert sorted(asked.search.offering) == sorted(offering[: MOST_DONORS - 1])
    asked.search.linked(MANY[-1])
    assert len(asked.sent) == 3
    for who in offering:
        asked.offers(who)
    assert asked.search.offering == frozenset(offering)
    asked.search.linked(MANY[-1])
    assert len(asked.sent) == 3


def test_an_answer_about_something_else_changes_nothing(asked: Asked) -> None:
    asked.offers(ONE)
    asked.offers(OTHER, bytes(32))
    asked.downloads.receive(ONE, Chunk(bytes(32), None))
    asked.downloads.receive(ONE, Chunk(ROOT, 0))
    assert asked.search.offering == {ONE}
    assert asked.done == []


def test_once_it_is_found_the_search_is_over(asked: Asked) -> None:
    asked.time += ASK_AGAIN_S
    asked.search.tick(asked.time)
    asked.offers(ONE)
    asked.search.lost(ONE)
    asked.changed()
    asked.search.found()
    assert asked.changed()
    assert (asked.search.problem, asked.search.unable()) == ("", {})
    assert asked.search.next_deadline() == float("inf")
    asked.search.lacks()
    asked.time += ASK_AGAIN_S
    asked.search.tick(asked.time)
    assert len(asked.warnings()) == 2, "it is missing again"


def test_stage_0_that_fetches_as_it_goes_needs_no_text(asked: Asked) -> None:
    asked.search.supplied(True, starved=False)
    assert asked.changed()
    assert asked.search.unable() == {}
    asked.search.tick(100.0 + ASK_AGAIN_S)
    assert asked.warnings() == []
    asked.changed()
    asked.search.supplied(True, starved=False)
    assert not asked.changed()
    for _ in range(2):
        asked.search.supplied(True, starved=True)
    assert asked.changed()
    assert asked.search.starved
    assert asked.warnings() == [asked.search.problem]
    asked.search.supplied(False, starved=False)
    assert asked.changed()
    assert not asked.search.starved
    assert list(asked.search.unable()) == [STAGE_0]
