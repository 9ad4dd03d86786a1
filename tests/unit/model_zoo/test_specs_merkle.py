"""The root of a token file's leaves: the shape of the tree, and streams cut anyhow."""

import random

import pytest

from model_zoo.specs.merkle import (
    LEAF,
    LEAF_BYTES,
    Tree,
    _join,
    climb,
    is_proven,
    leaf_digest,
    path_length,
    proven_size,
    root,
)
from model_zoo.specs.state_hash import LeafHasher


def _by_definition(leaves: list[bytes]) -> bytes:
    if len(leaves) == 1:
        return leaves[0]
    left = 1
    while 2 * left < len(leaves):
        left *= 2
    return _join(_by_definition(leaves[:left]), _by_definition(leaves[left:]))


@pytest.mark.parametrize("count", range(1, 20))
def test_the_left_half_is_a_power_of_two(count: int) -> None:
    leaves = [leaf_digest(bytes([number])) for number in range(count)]
    assert root(iter(leaves)) == _by_definition(leaves)


def test_a_leaf_is_no_inner_node() -> None:
    one, two = leaf_digest(b"one"), leaf_digest(b"two")
    assert leaf_digest(one + two) != root([one, two])


@pytest.mark.parametrize("over", [0, 17])
def test_a_stream_may_be_cut_anywhere(over: int) -> None:
    draw = random.Random(1)
    data = memoryview(draw.randbytes(3 * LEAF_BYTES + over))
    expected = [leaf_digest(data[at : at + LEAF_BYTES]) for at in range(0, len(data), LEAF_BYTES)]
    hasher, at = LeafHasher(LEAF_BYTES, LEAF), 0
    while at < len(data):
        size = draw.choice([1, 100, LEAF_BYTES, 2 * LEAF_BYTES + 3])
        hasher.update(data[at : at + size])
        at += size
    assert hasher.digests == expected
    assert hasher.whole == expected[:3]


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 11, 16, 19])
def test_every_leaf_leads_to_the_root_by_its_own_path(count: int) -> None:
    leaves = [leaf_digest(bytes([number])) for number in range(count)]
    tree = Tree(leaves)
    assert tree.root == root(leaves)
    for index, leaf in enumerate(leaves):
        path = tree.path(index)
        assert len(path) == path_length(index, count)
        assert climb(leaf, index, count, path) == tree.root
        others = {
            climb(leaf, other, count, path)
            for other in range(count)
            if other != index and path_length(other, count) == len(path)
        }
        assert tree.root not in others
        with pytest.raises(ValueError, match="zip"):
            climb(leaf, index, count, [*path, leaf])


def test_a_leaf_is_proven_for_its_place_only() -> None:
    data = random.Random(2).randbytes(2 * LEAF_BYTES + 100)
    parts = [data[at : at + LEAF_BYTES] for at in range(0, len(data), LEAF_BYTES)]
    tree = Tree(map(leaf_digest, parts))
    proven = [part + b"".join(tree.path(index)) for index, part in enumerate(parts)]
    of = len(data), tree.root.hex()
    assert [len(leaf) for leaf in proven] == [proven_size(index, len(data)) for index in range(3)]
    for index, leaf in enumerate(proven):
        assert [is_proven(leaf, at, *of) for at in range(-1, 4)] == [
            at == index for at in range(-1, 4)
        ]
        for wrong in (leaf[:-1], leaf + b"x", b"x" + leaf[1:], leaf[:-1] + b"x", b""):
            assert not is_proven(wrong, index, *of)
