"""Who offers training data, and which leaves the first stage wants, and when."""

import threading
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import trio
from msgspec.structs import replace

from client.store.leaves import LeafCache
from client.store.texts import TextStore
from client.train.transfer.blobs import Downloads
from client.train.transfer.leaf_supply import (
    AHEAD_S,
    ASK_AGAIN_S,
    DISK_AGAIN_S,
    MOST_DONORS,
    PLANNED_AT_ONCE,
    STEPS_AHEAD,
    LeafSupply,
)
from model_zoo.specs.data import DataSpec
from model_zoo.specs.merkle import LEAF_BYTES
from model_zoo.specs.windows import leaves_of
from protocol.ids import PeerId, Stage
from protocol.manifest import Manifest
from protocol.transfer.leaves import LeafEffect, LeafFetch, StoreChunk
from protocol.wire.messages import Chunk, ChunkRequest
from tests.support.full_disk import full
from tests.support.protocol_examples import manifest, peer
from tests.support.recording_ports import RecordingPorts

DATA = DataSpec("web", 5000 * LEAF_BYTES, "ab" * 32)
LARGE_BYTES = 10_000 * LEAF_BYTES
FAR = 50_000
"""A microbatch of which no leaf is needed soon."""


class Wanted(LeafFetch):
    """Keeps what was wanted last, and asks nobody."""

    awaited: list[int]
    ahead: list[int]

    def want(self, awaited: Any, ahead: Any, now: float) -> list[LeafEffect]:
        self.awaited, self.ahead = awaited, ahead
        return []


class Plan:
    """A supply with an empty cache."""

    def __init__(self, folder: Path, budget_bytes: int = LARGE_BYTES, **run: object) -> None:
        self.run = replace(manifest(), data=DATA, **run)
        self.ports = RecordingPorts(run=self.run)
        self.supply = LeafSupply(self.ports, TextStore(folder), [], budget_bytes)
        self.supply._cache = LeafCache(folder / "leaves", DATA, budget_bytes)
        self.supply._fetch = Wanted(self.supply.root)

    def wants(self, *, awaited: bool = False) -> list[int]:
        self.supply._look()
        fetch = cast(Wanted, self.supply._fetch)
        return fetch.awaited if awaited else fetch.ahead

    def at(self, step: int, after_s: float = 1000.0) -> list[int]:
        self.ports.time += after_s
        self.supply.at(step)
        self.supply._changed = trio.Event()
        return self.wants()


def per_step(run: Manifest) -> int:
    return run.microbatches_per_step * run.sequences_per_microbatch


def leaves(run: Manifest, first: int, count: int) -> set[int]:
    windows, context = DATA.windows(run.model.context), run.model.context
    starts = (windows.training_start(one, run.seed) for one in range(first, first + count))
    return {leaf for start in starts for leaf in leaves_of(start, context, DATA.token_bytes)}


def test_samples_of_the_next_steps_are_wanted_and_those_of_earlier_ones_no_more(
    tmp_path: Path,
) -> None:
    plan = Plan(tmp_path)
    assert plan.wants() == [], "no stage needs any"
    each = per_step(plan.run)
    first = plan.at(3)
    assert set(first) == leaves(plan.run, 3 * each, STEPS_AHEAD * each)
    assert set(first[:10]) <= leaves(plan.run, 3 * each, 20), "the most urgent first"
    assert set(plan.at(4)) == leaves(plan.run, 4 * each, STEPS_AHEAD * each)
    assert set(plan.at(1)) == leaves(plan.run, each, STEPS_AHEAD * each), "rolled back"
    plan.supply.rest()
    assert plan.wants() == []


def test_who_rests_asks_nobody_for_what_was_wanted(tmp_path: Path) -> None:
    plan, root, (one, other) = Plan(tmp_path), bytes.fromhex(DATA.digest), map(peer, range(2))
    supply = plan.supply
    supply._fetch, supply.offering = LeafFetch(root), {one, other}
    supply.at(0)
    supply._look()
    asked = [to for to, _ in plan.ports.sent]
    assert set(asked) == {one, other}
    supply.rest()
    supply.lost(one)
    index = plan.ports.sent[asked.index(other)][1].index
    supply.receive(other, Chunk(root, index), b"")
    assert len(plan.ports.sent) == len(asked)


def test_of_quick_steps_more_are_fetched_ahead(tmp_path: Path) -> None:
    plan = Plan(tmp_path)
    each = per_step(plan.run)
    plan.at(0)
    ahead = int(AHEAD_S / 1.0) * each
    assert set(plan.at(1, after_s=1.0)) == leaves(plan.run, each, ahead)
    plan.at(9, after_s=1.0)
    assert plan.supply._samples_ahead == STEPS_AHEAD * each, "no step has ended"


def test_no_more_is_wanted_than_half_of_the_budget_holds(tmp_path: Path) -> None:
    plan = Plan(tmp_path, 20 * LEAF_BYTES)
    assert 10 <= len(plan.at(0)) <= 11


def test_many_samples_are_worked_out_a_part_at_a_time(tmp_path: Path) -> None:
    plan = Plan(tmp_path, microbatches_per_step=64)
    each = per_step(plan.run)
    assert set(plan.at(0)) <= leaves(plan.run, 0, PLANNED_AT_ONCE)
    assert STEPS_AHEAD * each > PLANNED_AT_ONCE
    assert plan.supply._changed.is_set(), "it goes on at once"


async def test_what_an_earlier_process_kept_is_read_beside_the_loop_and_not_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, readers = Plan(tmp_path), set[int]()
    first = plan.at(0)[0]
    cache = plan.supply._cache
    assert cache is not None
    cache._kept[first] = LEAF_BYTES
    assert first not in plan.wants()

    def load(_: LeafCache, index: int) -> bytes:
        readers.add(threading.get_ident())
        return b"proven"

    monkeypatch.setattr(LeafCache, "load", load)
    await plan.supply._read_again()
    assert cache.has(first)
    assert readers
    assert threading.get_ident() not in readers


def test_what_tasks_need_is_kept_and_what_they_wait_for_wanted_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = Plan(tmp_path)
    of_task = leaves(plan.run, FAR * plan.run.sequences_per_microbatch, 4)
    plan.at(0)
    plan.supply.begin(FAR)
    assert set(plan.wants(awaited=True)) == of_task
    kept = []
    monkeypatch.setattr(LeafCache, "keep", lambda cache, *leaf: kept.append(leaf[-1]))
    plan.supply._perform([StoreChunk(7)], b"proven")
    assert kept[0] >= of_task
    plan.supply.end(FAR)
    assert plan.wants(awaited=True) == []


def test_a_disk_that_takes_none_rests_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = Plan(tmp_path)
    wanted = plan.at(0)
    monkeypatch.setattr(LeafCache, "keep", full)
    plan.supply._perform([StoreChunk(wanted[0])], b"proven")
    (said,) = plan.ports.told()
    assert "No space left on device: free space, or lower --data-cache" in said.words
    assert plan.wants() == []
    plan.ports.time += DISK_AGAIN_S
    assert plan.wants() == wanted


# --- who offers it, question by question ------------------------------------------------------

NOVEL = DataSpec("novel.txt", 4_200_000, "ab" * 32)
NOVEL_ROOT = bytes.fromhex(NOVEL.digest)
QUERY = ChunkRequest(NOVEL_ROOT, None)
ONE, OTHER, *MANY = (peer(n) for n in range(8))
STAGE_0 = Stage(0)


class Asked(RecordingPorts):
    """A clock, the members that are linked, and what becomes of all questions."""

    def __init__(self, folder: Path) -> None:
        super().__init__(run=replace(manifest(), data=NOVEL))
        self.links, self.changes = {ONE, OTHER}, 0
        self.supply = LeafSupply(self, TextStore(folder), [], 2**30)
        self.downloads = Downloads(cast(Any, self))
        self.downloads.takers.append(self.supply)

    def ability_changed(self) -> None:
        self.changes += 1

    async def finds(self) -> None:
        """Look for the data, which are on this disk."""
        self.supply._find = partial(setattr, self.supply, "_whole", "here")
        await self.supply.open()

    def offers(self, who: PeerId, root: bytes = NOVEL_ROOT) -> None:
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
    asked.downloads.receive(OTHER, Chunk(NOVEL_ROOT, None))
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
    asked.downloads.receive(ONE, Chunk(NOVEL_ROOT, 0))
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
