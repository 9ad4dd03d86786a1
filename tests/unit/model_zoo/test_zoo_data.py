"""A corpus gives the same samples everywhere and says plainly what is wrong with a source."""

import json
from pathlib import Path

import numpy as np
import pytest

from model_zoo.data import DataError, built_in_text
from model_zoo.datasets.build import open_source, tokens_of
from model_zoo.datasets.corpus import Corpus


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_samples_follow_seed_id_and_row_only(corpus: Corpus) -> None:
    one = corpus.sample(5, 4, 12, seed=9)
    assert np.array_equal(one, corpus.sample(5, 4, 12, seed=9))
    assert not np.array_equal(one, corpus.sample(6, 4, 12, seed=9))
    assert not np.array_equal(one, corpus.sample(5, 4, 12, seed=8))
    assert len({row.tobytes() for row in one}) > 1


def test_jsonl_joins_its_texts(tmp_path: Path) -> None:
    lines = [{"text": "one"}, {"text": "zwei ü", "other": 1}]
    content = "\n\n".join(json.dumps(line) for line in lines).encode()
    tokens = tokens_of(write(tmp_path / "a.jsonl", content), None)
    assert bytes(tokens.astype(np.uint8)) == "one\nzwei ü\n".encode()


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
    corpus.check(context=50)
    with pytest.raises(DataError, match="has 101 tokens, and a sample needs 52, for training"):
        corpus.check(context=51)


def test_standard_library(tmp_path: Path) -> None:
    corpus = open_source("stdlib")
    assert 4_000_000 < corpus.spec.tokens <= 8_000_000
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
    assert built_in_text(tmp_path) == "ä\nz\nb\n".encode()


def test_an_installation_without_sources_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="stdlib is empty"):
        built_in_text(tmp_path)
