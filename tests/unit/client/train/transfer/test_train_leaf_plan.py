"""Which leaves the first stage wants, and when: by the samples that come next."""

import errno
import threading
from pathlib import Path
from typing import Any, cast

import pytest
import trio
from msgspec.structs import replace

from client.store.leaves import LeafCache
from client.store.texts import TextStore
from client.train.transfer.leaf_supply import (
    AHEAD_S,
    DISK_AGAIN_S,
    PLANNED_AT_ONCE,
    STEPS_AHEAD,
    LeafSupply,
)
from model_zoo.specs.data import DataSpec
from model_zoo.specs.merkle import LEAF_BYTES
from model_zoo.specs.windows import leaves_of
from protocol.manifest import Manifest
from protocol.transfer.leaves import LeafEffect, LeafFetch, StoreChunk
from protocol.wire.messages import Chunk
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
    supply._fetch, supply._offers = LeafFetch(root), {one, other}
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
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    plan = Plan(tmp_path)
    wanted = plan.at(0)
    monkeypatch.setattr(LeafCache, "keep", full)
    plan.supply._perform([StoreChunk(wanted[0])], b"proven")
    (said,) = plan.ports.told()
    assert "No space left on device: free space, or lower --data-cache" in said.words
    assert plan.wants() == []
    plan.ports.time += DISK_AGAIN_S
    assert plan.wants() == wanted
