"""A corpus gives the same samples everywhere and says plainly what is wrong with a source."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from model_zoo.data import Corpus, DataError
from model_zoo.datasets.corpus import open_source


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_samples_are_windows_of_the_training_text(tmp_path: Path) -> None:
    text = bytes(range(32, 127)) * 11
    corpus = open_source(str(write(tmp_path / "a.txt", text)))
    samples = corpus.sample(3, sequences=5, context=8, seed=1)
    assert samples.shape == (5, 9)
    assert samples.dtype == np.uint16
    training = text[: int(0.9 * len(text))]
    assert all(bytes(row.astype(np.uint8)) in training for row in samples)


def test_samples_are_the_same_in_every_release(corpus: Corpus) -> None:
    row = corpus.sample(microbatch_id=5, sequences=2, context=12, seed=9)[1]
    assert bytes(row.astype(np.uint8)) == b"og. the quick"


def test_samples_follow_seed_id_and_row_only(corpus: Corpus) -> None:
    one = corpus.sample(5, 4, 12, seed=9)
    assert np.array_equal(one, corpus.sample(5, 4, 12, seed=9))
    assert np.array_equal(one[:2], corpus.sample(5, 2, 12, seed=9))
    assert not np.array_equal(one, corpus.sample(6, 4, 12, seed=9))
    assert not np.array_equal(one, corpus.sample(5, 4, 12, seed=8))
    assert len({row.tobytes() for row in one}) > 1


def test_training_and_held_out_text_do_not_overlap(tmp_path: Path) -> None:
    corpus = open_source(str(write(tmp_path / "a.txt", b"a" * 900 + b"b" * 100)))
    for index in range(50):
        assert set(corpus.sample(index, 4, 20, seed=0).flat) == {ord("a")}
        assert set(corpus.held_out_batch(index, 4, 20).flat) == {ord("b")}


def test_every_window_can_be_drawn(tmp_path: Path) -> None:
    corpus = open_source(str(write(tmp_path / "a.txt", b"abcdefghij")))  # 9 to train on
    seen = {bytes(corpus.sample(i, 1, 7, seed=0)[0].astype(np.uint8)) for i in range(40)}
    assert seen == {b"abcdefgh", b"bcdefghi"}


def test_digest_size_and_copy(tmp_path: Path) -> None:
    text = b"some text " * 1000
    corpus = open_source(str(write(tmp_path / "a.txt", text)))
    assert corpus.size == len(text)
    assert corpus.digest == hashlib.blake2b(text, digest_size=32).hexdigest()
    pieces = [corpus.read(offset, 999) for offset in range(0, corpus.size, 999)]
    copy = Corpus.from_bytes_file(write(tmp_path / "copy", b"".join(pieces)))
    assert copy.digest == corpus.digest
    assert np.array_equal(copy.sample(1, 2, 9, seed=0), corpus.sample(1, 2, 9, seed=0))
    assert corpus.read(len(text), 5) == b""
    with pytest.raises(ValueError, match="negative"):
        corpus.read(-1, 5)


def test_jsonl_joins_its_texts(tmp_path: Path) -> None:
    lines = [{"text": "one"}, {"text": "zwei ü", "other": 1}]
    content = "\n\n".join(json.dumps(line) for line in lines).encode()
    corpus = open_source(str(write(tmp_path / "a.jsonl", content)))
    assert corpus.read(0, 100) == "one\nzwei ü\n".encode()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"text": "a"}\n{"text": \n', "line 2, is not JSON"),
        (b'{"text": "a"}\n\n{"txt": "a"}\n', 'line 3, has no string field "text"'),
        (b'{"text": 5}\n', "line 1, has no string"),
        (b"1\n", "line 1, has no string"),
        (b"[1, 2]\n", "is a JSON array"),
        (b'{"text": "\xff"}\n', "line 1, is not JSON"),
        (b'{"text": ' + b"[" * 100_000, "line 1, is not JSON"),
        (b"", "is empty"),
        (b"\n\n", "is empty"),
    ],
)
def test_jsonl_refuses(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        open_source(str(write(tmp_path / "a.jsonl", content)))


@pytest.mark.parametrize("name", ["missing.txt", "missing.jsonl"])
def test_a_missing_source_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match="does not exist"):
        open_source(str(tmp_path / name))


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is empty"):
        open_source(str(write(tmp_path / "a.txt", b"")))


def test_a_text_shorter_than_one_sample_is_refused(tmp_path: Path) -> None:
    corpus = open_source(str(write(tmp_path / "a.txt", b"x" * 100)))
    corpus.check(context=9)
    with pytest.raises(DataError, match="held-out text has 10 bytes, one sample needs 11"):
        corpus.check(context=10)
    with pytest.raises(DataError, match="training text has 90 bytes, one sample needs 91"):
        corpus.sample(0, 1, 90, seed=0)


def test_standard_library(tmp_path: Path) -> None:
    corpus = open_source("stdlib")
    assert 4_000_000 < corpus.size <= 8_000_000
    corpus.check(context=1024)
    assert open_source("stdlib").digest == corpus.digest


def test_standard_library_order_and_skipping(tmp_path: Path) -> None:
    files = {
        "b.py": b"b\r\n",
        "a/z.py": b"z\n",
        "a.py": "ä\n".encode() + b"\xff",
        "test/t.py": b"no",
        "a/test/t.py": b"no",
        "site-packages/s.py": b"no",
        "_sysconfigdata_linux.py": b"no",
        "notes.txt": b"no",
    }
    for name, content in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    assert Corpus.from_stdlib(tmp_path).read(0, 100) == "ä\nz\nb\n".encode()


def test_an_installation_without_sources_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="stdlib is empty"):
        Corpus.from_stdlib(tmp_path)
