"""Leaves on disk: proven when they are read, within a budget."""

import errno
import os
import random
from fractions import Fraction
from pathlib import Path

import pytest

from client.compute.samples import token_corpus
from client.store.leaves import DataFolder, LeafCache, WrongFolder
from client.store.texts import TextStore, is_founders, keep_folder
from model_zoo.datasets.build import build
from model_zoo.datasets.corpus import Corpus
from model_zoo.datasets.folder import open_folder
from model_zoo.datasets.mix import mix
from model_zoo.specs.data import DataSpec
from model_zoo.specs.merkle import (
    DIGEST_BYTES,
    LEAF_BYTES,
    Tree,
    is_proven,
    leaf_count,
    leaf_digest,
)
from model_zoo.specs.shards import LEAVES, SHARD_BYTES, shard_name, shard_sizes
from model_zoo.specs.windows import leaves_of
from tests.support.full_disk import full

COUNT = 6
ROOM = 3 * (LEAF_BYTES + 3 * DIGEST_BYTES)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder of six leaves."""
    place = tmp_path_factory.mktemp("data")
    book = place / "book.txt"
    letters = random.Random(1).choices("abcdefgh \n", k=700_000)
    book.write_text("".join(letters))
    return build([book], place / "tokens").path


@pytest.fixture
def data(folder: Path) -> DataSpec:
    return open_folder(folder).index.spec


def proven(folder: Path, data: DataSpec) -> list[bytes]:
    whole = DataFolder(folder, data)
    return [whole.load(index) or b"" for index in range(COUNT)]


def test_every_leaf_of_a_folder_is_given_with_its_proof(folder: Path, data: DataSpec) -> None:
    leaves = proven(folder, data)
    assert leaf_count(data.size_bytes) == COUNT
    for index, leaf in enumerate(leaves):
        assert is_proven(leaf, index, data.size_bytes, data.digest)
    whole = DataFolder(folder, data)
    assert whole.load(COUNT) is None
    assert whole.load(-1) is None


def test_a_damaged_leaf_is_not_given(folder: Path, data: DataSpec, tmp_path: Path) -> None:
    """Whoever gives a wrong one pays for it."""
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in folder.iterdir():
        if path.is_file():
            (copy / path.name).write_bytes(path.read_bytes())
    with (copy / shard_name(0)).open("r+b") as file:
        file.seek(LEAF_BYTES + 9)
        file.write(b"\xff")
    found = [leaf is None for leaf in map(DataFolder(copy, data).load, range(COUNT))]
    assert found == [False, True, False, False, False, False]
    with (copy / LEAVES).open("r+b") as file:
        file.write(b"x")
    with pytest.raises(WrongFolder, match="has the root"):
        DataFolder(copy, data)
    with (copy / LEAVES).open("ab") as file:
        file.write(b"x")
    with pytest.raises(WrongFolder, match="does not have 6 digests"):
        DataFolder(copy, data)
    (copy / LEAVES).unlink()
    with pytest.raises(FileNotFoundError):
        DataFolder(copy, data)
    os.truncate(copy / shard_name(0), 100)
    with pytest.raises(WrongFolder, match="has 100 bytes"):
        DataFolder(copy, data)
    (copy / shard_name(0)).unlink()
    with pytest.raises(FileNotFoundError):
        DataFolder(copy, data)


def test_a_cache_keeps_to_its_budget(folder: Path, data: DataSpec, tmp_path: Path) -> None:
    """What was used longest ago goes first, and nothing that is needed."""
    leaves = proven(folder, data)
    cache = LeafCache(tmp_path / "cache", data, ROOM)
    assert cache.empty
    for index in (0, 1, 2):
        cache.keep(index, leaves[index], [])
    assert cache.has(0)
    cache.keep(3, leaves[3], [])
    assert [cache.has(index) for index in range(COUNT)] == [True, False, True, True, False, False]
    cache.keep(4, leaves[4], [0, 2])
    assert [cache.has(index) for index in range(COUNT)] == [True, False, True, False, True, False]
    assert cache.size_bytes <= ROOM
    assert len(list(cache.folder.iterdir())) == 3
    assert cache.note(0, cache.load(0)) == leaves[0]
    assert cache.note(1, cache.load(1)) is None
    cache.path(0).write_bytes(b"x")
    assert cache.has(0), "what is proven is not read again"
    assert cache.note(0, cache.load(0)) is None
    assert not cache.has(0)


def test_a_cache_is_found_again_and_proven_anew(
    folder: Path, data: DataSpec, tmp_path: Path
) -> None:
    leaves = proven(folder, data)
    first = LeafCache(tmp_path / "cache", data, ROOM)
    for index in (0, 1, 2):
        first.keep(index, leaves[index], [])
    damaged, torn = first.path(1), first.path(2)
    damaged.write_bytes(b"x" + damaged.read_bytes()[1:])
    torn.write_bytes(torn.read_bytes()[:99])
    (first.folder / "99.leaf").write_bytes(b"of no such place")
    (first.folder / ".5.tmp").write_bytes(b"interrupted")
    again = LeafCache(tmp_path / "cache", data, ROOM)
    assert [again.has_unread(index) for index in range(3)] == [True] * 3
    assert not again.has(0), "before it is read"
    for index in range(3):
        again.note(index, again.load(index))
    assert [again.has(index) for index in range(3)] == [True, False, False]
    assert not damaged.exists()
    smaller = LeafCache(tmp_path / "cache", data, 1)
    assert smaller.empty


def test_a_full_disk_leaves_no_half_leaf(
    folder: Path, data: DataSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = LeafCache(tmp_path / "cache", data, ROOM)
    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match="No space"):
        cache.keep(0, proven(folder, data)[0], [])
    assert cache.empty
    assert list(cache.folder.iterdir()) == []


def test_of_a_mixture_the_worker_reads_the_leaves_that_are_planned(
    folder: Path, tmp_path: Path
) -> None:
    """A sample needs what `leaves_of` says, and the parts' end lies within a leaf."""
    book = tmp_path / "small.txt"
    book.write_text("".join(f"{n} is a number\n" for n in range(20_000)))
    build([book], tmp_path / "small")
    choices = [(folder, Fraction(3)), (tmp_path / "small", Fraction(1))]
    made = mix(choices, tmp_path / "mixed")
    spec, whole = made.index.spec, DataFolder(made.path, made.index.spec)
    cache = LeafCache(tmp_path / "cache", spec, 10 * LEAF_BYTES)
    expected, windows = Corpus.from_folder(made), spec.windows(3000)
    for number in range(60):
        for leaf in leaves_of(windows.training_start(number, 1), 3000, spec.token_bytes):
            cache.keep(leaf, whole.load(leaf) or b"", [])
        found = token_corpus(cache.folder, spec).sample(number, 1, 3000, seed=1)
        assert found.tolist() == expected.sample(number, 1, 3000, seed=1).tolist()


def test_a_folder_on_another_disk_is_used_where_it_is(
    folder: Path, data: DataSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(reasons.pop(), "no link")

    store = TextStore(tmp_path / "texts")
    reasons = [errno.ENOSPC, errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP]
    with monkeypatch.context() as patch:
        patch.setattr(os, "link", refuse)
        while len(reasons) > 1:
            assert keep_folder(folder, data, store) == folder
        with pytest.raises(OSError, match="no link"):
            keep_folder(folder, data, store)
    assert list(store.folder.iterdir()) == []
    kept = keep_folder(folder, data, store)
    assert kept == store.tokens(data.digest)
    assert keep_folder(folder, data, store) == kept
    store.remember(data.digest, folder)
    assert is_founders(kept / shard_name(0))


def test_a_hundred_gigabytes_are_proven_leaf_by_leaf(tmp_path: Path) -> None:
    """A sparse folder: nothing is read but the digests and the leaf."""
    size = 100 * 10**9
    count = leaf_count(size)
    zeros, written = leaf_digest(bytes(LEAF_BYTES)), leaf_digest(b"w" * LEAF_BYTES)
    last = leaf_digest(bytes(size - (count - 1) * LEAF_BYTES))
    marked = 5 * SHARD_BYTES // LEAF_BYTES + 3
    digests = [zeros] * (count - 1) + [last]
    digests[marked] = written
    for number, shard in enumerate(shard_sizes(size)):
        with (tmp_path / shard_name(number)).open("wb") as file:
            file.truncate(shard)
            if number == 5:
                file.seek(3 * LEAF_BYTES)
                file.write(b"w" * LEAF_BYTES)
    (tmp_path / LEAVES).write_bytes(b"".join(digests))
    data = DataSpec("zeros", size, Tree(digests).root.hex())
    whole = DataFolder(tmp_path, data)
    for index in (0, 1, marked, count // 2, count - 1):
        leaf = whole.load(index)
        assert is_proven(leaf, index, size, data.digest)
        assert leaf.startswith(b"w") == (index == marked)
