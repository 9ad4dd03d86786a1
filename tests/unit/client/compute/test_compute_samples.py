"""Samples by the number of a microbatch: read alike everywhere, or refused in words."""

from pathlib import Path

import pytest

from client.compute.errors import WrongData
from client.compute.samples import Samples, token_corpus
from model_zoo.datasets.build import build
from model_zoo.datasets.corpus import Corpus
from model_zoo.datasets.folder import Folder
from model_zoo.specs.data import DataSpec
from model_zoo.specs.merkle import LEAF_BYTES
from model_zoo.specs.shards import INDEX, SHARD_BYTES, leaf_name, shard_name
from tests.support.compute_stages import SEQUENCES, TOKENS, open_request

WORDS = bytes(range(1, 61)) * 200


def keep(path: Path, words: bytes = WORDS) -> Folder:
    """Make a data folder of some bytes."""
    (text := path.with_suffix(".txt")).write_bytes(words)
    return build([text], path)


def opened(folder: Folder) -> Samples:
    data = folder.index.spec
    return Samples(open_request(0, [4], corpus=str(folder.path), data=data))


def test_a_microbatch_is_the_same_wherever_it_is_read(tmp_path: Path) -> None:
    folder = keep(tmp_path / "a")
    one, other = opened(folder), opened(keep(tmp_path / "b"))
    batches = [one.read(number) for number in (0, 1, -1, -2)]
    assert batches == [other.read(number) for number in (0, 1, -1, -2)]
    assert len(set(batches)) == 4
    assert {len(batch) for batch in batches} == {2 * SEQUENCES * (TOKENS + 1)}
    held_out = (
        Corpus.from_folder(folder).held_out_batch(1, SEQUENCES, TOKENS).astype("<u2").tobytes()
    )
    assert batches[3] == held_out


def test_no_stage_is_opened_without_its_text(tmp_path: Path) -> None:
    with pytest.raises(WrongData, match="a sample needs"):
        opened(keep(tmp_path / "short", b"too short"))


def test_tokens_that_the_model_does_not_know_are_refused(tmp_path: Path) -> None:
    assert opened(keep(tmp_path / "known", bytes([60]) * 9000)).read(0)
    unknown = opened(keep(tmp_path / "unknown", bytes([61]) * 9000))
    with pytest.raises(WrongData, match="microbatch 3 has tokens beyond the vocabulary"):
        unknown.read(3)


def test_a_leaf_that_is_gone_is_named_with_its_microbatch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = opened(keep(tmp_path / "text"))

    def gone(*_: object) -> None:
        raise FileNotFoundError("leaf 7")

    monkeypatch.setattr(made._corpus, "sample", gone)
    with pytest.raises(WrongData, match="microbatch 5 cannot be read: leaf 7"):
        made.read(5)


TOKENS_DATA = DataSpec("tokens", 2 * SHARD_BYTES, "ab" * 32)


def test_leaves_lie_in_files_of_their_own_or_in_shards(tmp_path: Path) -> None:
    leaf, start = 3, 5
    (tmp_path / leaf_name(leaf)).write_bytes(b"....." + b"of a leaf")
    assert token_corpus(tmp_path, TOKENS_DATA)._read_leaf(leaf, start, 9) == b"of a leaf"
    (tmp_path / INDEX).write_text("{}")
    second = SHARD_BYTES // LEAF_BYTES + leaf
    with (tmp_path / shard_name(1)).open("wb") as shard:
        shard.seek(leaf * LEAF_BYTES + start)
        shard.write(b"of a shard")
    assert token_corpus(tmp_path, TOKENS_DATA)._read_leaf(second, start, 10) == b"of a shard"
