"""Token data, leaf by leaf: who has not the whole fetches what it needs, and trains the same."""

import threading
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import cast

import pytest
import trio

from client.store.leaves import LeafCache
from client.train.transfer.leaf_supply import MOST_AHEAD, LeafSupply
from model_zoo.datasets.build import build
from model_zoo.datasets.mix import mix
from model_zoo.specs.merkle import LEAF_BYTES, leaf_count
from protocol.pace import LOST_S
from tests.support.train_swarm import ADVERT, Volunteer, open_swarm

LEAVES = 14
BUDGET_BYTES = 10 * LEAF_BYTES


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder of fourteen leaves; of no two are the bytes the same."""
    folder = tmp_path_factory.mktemp("data")
    book = folder / "book.txt"
    book.write_text("".join(f"{n}: the quick brown fox jumps\n" for n in range(55_000)))
    made = build([book], folder / "tokens")
    assert leaf_count(made.index.spec.size_bytes) == LEAVES
    return made.path


@pytest.fixture(scope="module")
def mixed(tokens: Path) -> Path:
    """Those tokens with some more, which are a third of what is seen."""
    small = tokens.parent / "small.txt"
    small.write_text("".join(f"{n} jumps over the lazy dog\n" for n in range(9000)))
    build([small], tokens.parent / "small")
    choices = [(tokens, Fraction(2)), (tokens.parent / "small", Fraction(1))]
    made = mix(choices, tokens.parent / "mixed")
    assert leaf_count(made.index.spec.size_bytes) > LEAVES
    return made.path


def supply(volunteer: Volunteer) -> LeafSupply:
    return volunteer.held_stages.leaves  # type: ignore[return-value]


def cached(volunteer: Volunteer) -> Sequence[Path]:
    return sorted(supply(volunteer).folder.glob("*.leaf"))


async def enter(volunteer: Volunteer) -> None:
    """Look for the data, as on entering the swarm."""
    await volunteer.held_stages.text_problem()
    volunteer.engine.describe(ADVERT)


async def test_a_mixture_is_trained_on_as_by_one_process_within_the_budget_of_the_disk(
    tmp_path: Path, mixed: Path
) -> None:
    async with open_swarm(tmp_path, data=str(mixed)) as swarm:
        swarm.cache_bytes = BUDGET_BYTES
        founder = await swarm.add(1)
        await enter(founder)
        first = await swarm.add(0, text=False)
        await swarm.add(0, text=False)
        most = 0

        def done() -> bool:
            nonlocal most
            most = max(most, len(cached(first)))
            return all(map(swarm._is_done, swarm.volunteers))

        await swarm.until(done)
        assert 0 < most <= BUDGET_BYTES // LEAF_BYTES < LEAVES, "leaves are fetched again"
        assert supply(first)._most_ahead == 2 * MOST_AHEAD
        assert not first.refused
        swarm.assert_exact()


async def test_what_one_has_fetched_it_gives_to_others(tmp_path: Path, tokens: Path) -> None:
    async with open_swarm(tmp_path, data=str(tokens), steps=200) as swarm:
        founder = await swarm.add()
        await enter(founder)
        first = await swarm.add(0, text=False)
        await swarm.add(1, text=False)
        await swarm.until(lambda: len(cached(first)) == LEAVES)
        swarm.vanish(founder)
        second = await swarm.add(0, text=False)
        await swarm.until(lambda: len(cached(second)) == LEAVES)
        assert first.engine.shelf.served_bytes >= (LEAVES - 1) * LEAF_BYTES


async def test_a_leaf_that_lies_costs_its_giver_and_comes_from_another(
    tmp_path: Path, tokens: Path
) -> None:
    async with open_swarm(tmp_path, data=str(tokens)) as swarm:
        liar, founder = await swarm.add(text=False), await swarm.add(1)
        await enter(founder)

        class Lies:
            root = supply(founder).root

            async def read(self, index: int | None) -> bytes:
                right = await supply(founder).read(index)
                if index is None:
                    return right
                return right[:77] + bytes([right[77] ^ 1]) + right[78:]

        liar.engine.shelf.leaves = Lies()  # type: ignore[assignment]
        first = await swarm.add(0, text=False)
        await swarm.until(lambda: first.refused["leaf-not-proven"])
        swarm.vanish(liar)  # it is banned, and would never see the end
        await swarm.until_done()
        assert first.refused == {"leaf-not-proven": 1}
        swarm.assert_exact()


async def test_a_cache_is_kept_over_a_restart_and_a_damaged_leaf_is_fetched_again(
    tmp_path: Path, tokens: Path
) -> None:
    async with open_swarm(tmp_path, data=str(tokens)) as swarm:
        founder = await swarm.add(1)
        await enter(founder)
        first = await swarm.add(0, text=False)
        await swarm.until(lambda: len(cached(first)) == LEAVES)
        before = founder.engine.shelf.served_bytes
        damaged = cached(first)[3]
        damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")
        swarm.vanish(first)
        same = supply(first)
        again = LeafSupply(same._ports, same._store, [], swarm.cache_bytes)
        assert "does not have" in await again.open()
        found = [bool(await again.read(index)) for index in range(LEAVES)]
        assert found.count(False) == 1
        assert not damaged.exists(), "what is damaged is removed, and fetched when it is needed"
        assert before == founder.engine.shelf.served_bytes


async def test_when_the_last_giver_leaves_it_is_said_and_training_goes_on_when_one_comes(
    tmp_path: Path, tokens: Path
) -> None:
    async with open_swarm(tmp_path, data=str(tokens), steps=40) as swarm:
        swarm.cache_bytes = 3 * LEAF_BYTES
        founder = await swarm.add()
        await enter(founder)
        first, last = await swarm.add(0, text=False), await swarm.add(1, text=False)
        await swarm.until(lambda: first.step(0) >= 2)
        swarm.vanish(founder)
        await swarm.until(lambda: first.shown().state == "waiting")
        words = first.shown().reason
        assert "are missing: join with --data" in words
        assert ("warning", words) in [(said.level, said.words) for said in first.events]
        step = first.step(0)
        await trio.sleep(LOST_S)
        assert first.step(0) == step
        back = await swarm.add()
        await enter(back)
        await swarm.until(lambda: first.step(0) > step + 1)
        assert first.shown().state != "waiting"
        assert last.step(1) >= step


class SlowDisk:
    """Notes in which thread it is read, and what was found."""

    def __init__(self) -> None:
        self.threads, self.noted = list[int](), list[bytes | None]()

    def load(self, index: int) -> bytes | None:
        self.threads.append(threading.get_ident())
        return b"leaf" if index else None

    def note(self, index: int, loaded: bytes | None) -> bytes | None:
        self.noted.append(loaded)
        return loaded


async def test_a_leaf_is_read_for_a_member_beside_the_node_which_a_slow_disk_would_hold_up() -> (
    None
):
    leaves, disk = LeafSupply.__new__(LeafSupply), SlowDisk()
    leaves._whole, leaves._cache = None, cast(LeafCache, disk)
    assert [await leaves.read(index) for index in (1, 0)] == [b"leaf", b""]
    assert disk.noted == [b"leaf", None]
    assert threading.get_ident() not in disk.threads
    leaves._cache = None
    assert await leaves.read(1) == b""
