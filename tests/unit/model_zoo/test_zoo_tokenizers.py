"""Every tokenizer gives a text back; corpora and samples are of the tokens of the one named."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from model_zoo.data import DataError
from model_zoo.datasets.corpus import open_source
from model_zoo.sample import generate
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.tokens import TOKENIZERS, token_bytes, token_dtype
from model_zoo.tokenizers.tokenizer import Bytes, Tokenizer, Tokens, load_tokenizer
from model_zoo.whole import build_whole

TEXT = "the quick brown fox, über «40» lazy dogs\n".encode() * 9


class Capitals(Tokenizer):
    """Letters, and a hyphen for all else: it loses text, which shows whose tokens are used."""

    def encode(self, text: Bytes) -> Tokens:
        letters = (text | 32) - ord("a")
        return np.where(letters < 26, letters, 26).astype(np.uint8)

    def decode(self, token: int) -> bytes:
        return b"ABCDEFGHIJKLMNOPQRSTUVWXYZ-"[token : token + 1]


@pytest.fixture
def capitals(monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a tokenizer that is registered for one test."""
    module = ModuleType("capitals")
    module.TOKENIZER = Capitals()  # type: ignore[attr-defined]
    monkeypatch.setitem(TOKENIZERS, "capitals", 27)
    monkeypatch.setitem(sys.modules, "model_zoo.tokenizers.capitals", module)
    return "capitals"


@pytest.mark.parametrize("name", list(TOKENIZERS))
def test_a_text_comes_back(name: str) -> None:
    words = load_tokenizer(name)
    tokens = words.encode(np.frombuffer(TEXT, dtype=np.uint8))
    assert len(tokens) <= len(TEXT)
    assert 0 <= int(tokens.min()) <= int(tokens.max()) < TOKENIZERS[name]
    assert b"".join(words.decode(int(token)) for token in tokens) == TEXT


@pytest.mark.parametrize("name", list(TOKENIZERS))
def test_every_token_stands_for_a_byte_at_least(name: str) -> None:
    words = load_tokenizer(name)
    assert all(words.decode(token) for token in range(TOKENIZERS[name]))


def test_only_registered_tokenizers_are_imported() -> None:
    with pytest.raises(ValueError, match="unknown"):
        load_tokenizer("tokenizer")


def test_samples_are_tokens_of_the_text(tmp_path: Path, capitals: str) -> None:
    path = tmp_path / "text"
    path.write_bytes(TEXT)
    plain, other = open_source(str(path)), open_source(str(path), capitals)
    assert other.digest == plain.digest
    assert other.read(0, len(TEXT)) == TEXT
    sample = plain.sample(3, 2, 8, seed=1)
    expected = Capitals().encode(sample.astype(np.uint8))
    assert np.array_equal(other.sample(3, 2, 8, seed=1), expected)
    with pytest.raises(DataError, match="tokens, one sample needs"):
        other.held_out_batch(0, 1, 1000)


def test_text_is_drawn_from_the_tokens_of_the_model(capitals: str) -> None:
    model = build_whole(ModelSpec("gpt", 1, 16, 2, 2, 32, context=8, vocab=27), seed=0)
    text = generate(model, "any text, even with é", 30, tokenizer=capitals)
    assert len(text) == 30
    assert set(text) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZ-")


@pytest.mark.parametrize(("vocab", "size"), [(1, 2), (1 << 16, 2), ((1 << 16) + 1, 4)])
def test_tokens_are_as_large_as_the_vocabulary_needs(vocab: int, size: int) -> None:
    dtype = np.dtype(token_dtype(vocab))
    assert dtype.itemsize == token_bytes(vocab) == size
    assert vocab - 1 <= np.iinfo(dtype).max
