"""Samples and texts are of the tokens that the model has; tokens are as large as they need."""

from pathlib import Path

import numpy as np
import pytest

from model_zoo.data import DataError
from model_zoo.datasets.build import open_source
from model_zoo.specs.tokens import token_bytes, token_dtype

TEXT = "the quick brown fox, über «40» lazy dogs\n".encode() * 9


def test_every_byte_of_a_text_is_a_token(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(TEXT)
    corpus = open_source(str(path))
    (sample,) = corpus.sample(3, 1, 8, seed=1)
    assert sample.astype(np.uint8).tobytes() in TEXT
    with pytest.raises(DataError, match="tokens, and a sample needs"):
        corpus.held_out_batch(0, 1, 1000)


@pytest.mark.parametrize(("vocab", "size"), [(1, 2), (1 << 16, 2), ((1 << 16) + 1, 4)])
def test_tokens_are_as_large_as_the_vocabulary_needs(vocab: int, size: int) -> None:
    dtype = np.dtype(token_dtype(vocab))
    assert dtype.itemsize == token_bytes(vocab) == size
    assert vocab - 1 <= np.iinfo(dtype).max
