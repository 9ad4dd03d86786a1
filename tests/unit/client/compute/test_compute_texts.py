"""A text is kept as a file of its bytes, and checked whenever it is opened."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from client.compute.errors import WrongData
from client.compute.requests import PrepareData
from client.compute.samples import find_kept, keep, prepare
from model_zoo.data import Corpus

WORDS = b"quick brown foxes jump over the lazy dog\n" * 100


def text() -> Corpus:
    return Corpus("words", np.frombuffer(WORDS, dtype=np.uint8))


def test_a_text_is_kept_and_a_shortened_one_is_not_taken(tmp_path: Path) -> None:
    path = tmp_path / "text"
    keep(text(), path)
    assert path.read_bytes() == WORDS
    request = PrepareData(source="", digest=text().digest, path=str(path))
    prepare(request)
    path.write_bytes(WORDS[:-1])
    with pytest.raises(WrongData):
        prepare(request)


def test_a_damaged_text_is_copied_again_from_its_source(tmp_path: Path) -> None:
    path, source = tmp_path / "text", tmp_path / "source"
    source.write_bytes(WORDS)
    path.write_bytes(WORDS[:-1])
    prepare(PrepareData(source=str(source), digest=text().digest, path=str(path)))
    assert find_kept(path, text().digest) is not None
