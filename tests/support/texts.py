"""Texts as the data folders that are made of them."""

import tempfile
from functools import lru_cache
from pathlib import Path

from model_zoo.data import BUILT_IN, built_in_text
from model_zoo.datasets.build import build
from model_zoo.datasets.corpus import Corpus
from model_zoo.datasets.folder import is_data_folder, open_folder


@lru_cache(maxsize=1)
def _made() -> tempfile.TemporaryDirectory[str]:
    """The folder of those of this process; it goes with it."""
    return tempfile.TemporaryDirectory(prefix="vol-texts-")


@lru_cache
def folder_of(source: str) -> Path:
    """Return the data folder of a text, of Python's own source, or the one that is named."""
    path = Path(source)
    if is_data_folder(path):
        return path
    place = Path(tempfile.mkdtemp(dir=_made().name))
    if source == BUILT_IN:
        path = place / BUILT_IN
        path.write_bytes(built_in_text())
    return build([path], place / "tokens").path


def corpus_of(source: str) -> Corpus:
    """Return the tokens of a text, of Python's own source, or of a data folder."""
    return Corpus.from_folder(open_folder(folder_of(source)))
