"""Samples by the number of a microbatch: read alike everywhere, or refused in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client.compute import samples
from client.compute.errors import WrongData
from client.compute.requests import PrepareData
from client.compute.samples import Samples, keep, prepare, token_corpus
from model_zoo.data import Corpus
from model_zoo.specs.data import DataSpec
from model_zoo.specs.merkle import LEAF_BYTES
from model_zoo.specs.shards import INDEX, SHARD_BYTES, leaf_name, shard_name
from tests.support.compute_stages import SEQUENCES, TOKENS, open_request

WORDS = bytes(range(61)) * 200


def text(words: bytes = WORDS) -> Corpus:
    return Corpus("words", np.frombuffer(words, dtype=np.uint8))


def opened(path: Path, **changes: Any) -> Samples:
    return Samples(open_request(0, [4], corpus=str(path), **changes))


def test_a_microbatch_is_the_same_wherever_it_is_read(tmp_path: Path) -> None:
    for name in "ab":
        keep(text(), tmp_path / name)
    one, other = opened(tmp_path / "a"), opened(tmp_path / "b")
    batches = [one.read(number) for number in (0, 1, -1, -2)]
    assert batches == [other.read(number) for number in (0, 1, -1, -2)]
    assert len(set(batches)) == 4
    assert {len(batch) for batch in batches} == {2 * SEQUENCES * (TOKENS + 1)}
    held_out = text().held_out_batch(1, SEQUENCES, TOKENS).astype("<u2").tobytes()
    assert batches[3] == held_out


def test_no_stage_is_opened_without_its_text(tmp_path: Path) -> None:
    with pytest.raises(WrongData, match="nowhere"):
        opened(tmp_path / "nowhere")
    (tmp_path / "short").write_bytes(b"too short")
    with pytest.raises(WrongData):
        opened(tmp_path / "short")


def test_tokens_that_the_model_does_not_know_are_refused(tmp_path: Path) -> None:
    keep(text(bytes([60]) * 9000), tmp_path / "known")
    assert opened(tmp_path / "known").read(0)
    keep(text(bytes([61]) * 9000), tmp_path / "unknown")
    with pytest.raises(WrongData, match="microbatch 3 has tokens beyond the vocabulary"):
        opened(tmp_path / "unknown").read(3)


def test_a_leaf_that_is_gone_is_named_with_its_microbatch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(text(), tmp_path / "text")
    made = opened(tmp_path / "text")

    def gone(*_: object) -> None:
        raise FileNotFoundError("leaf 7")

    monkeypatch.setattr(made._corpus, "sample", gone)
    with pytest.raises(WrongData, match="microbatch 5 cannot be read: leaf 7"):
        made.read(5)


TOKENS_DATA = DataSpec("tokens", "tokens", 2 * SHARD_BYTES, "ab" * 32)


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


def request(tmp_path: Path, source: str, digest: str) -> PrepareData:
    return PrepareData(source=source, digest=digest, path=str(tmp_path / "kept"))


def test_a_source_that_is_none_or_another_is_refused_in_words(tmp_path: Path) -> None:
    other, words_of_it = tmp_path / "other", b"another text than the one of the swarm\n" * 40
    other.write_bytes(words_of_it)
    missing = tmp_path / "missing"
    for source, words in (
        ("", "does not have the swarm's training text"),
        (str(missing), "missing"),
        (str(other), f"{other} has the digest {text(words_of_it).digest[:12]}"),
    ):
        with pytest.raises(WrongData, match=words):
            prepare(request(tmp_path, source, text().digest))
        assert not (tmp_path / "kept").exists()


def test_a_source_that_changes_while_it_is_copied_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = text()
    monkeypatch.setattr(samples, "_COPY_BYTES", 1000)
    monkeypatch.setattr(corpus, "read", lambda offset, size: b"x" * size)
    with pytest.raises(WrongData, match="words was changed while it was copied"):
        keep(corpus, tmp_path / "kept")
    assert list(tmp_path.iterdir()) == []
