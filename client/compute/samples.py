"""The training text on the worker's side: checked against its digest, read by microbatch id.

The text is kept as one file of its bytes, whatever its source was, so that it can be mapped here
and served in chunks to volunteers who do not have it. An encrypted one is held in memory instead.
"""

import os
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

import numpy as np

from client import at_rest
from client.compute.errors import WrongData
from client.compute.replies import DataReady
from client.compute.requests import OpenStage, PrepareData
from model_zoo.data import Corpus, DataError
from model_zoo.specs.tokens import DEFAULT, token_dtype

_COPY_BYTES = 4 << 20


class Samples:
    """Reads the samples of an id; the manifest's seed and microbatch shape are fixed."""

    def __init__(self, request: OpenStage) -> None:
        try:
            self._corpus = kept_corpus(Path(request.corpus), request.tokenizer)
            self._corpus.check(request.tokens)
        except DataError as error:
            raise WrongData(str(error)) from error
        self._sequences, self._tokens = request.sequences, request.tokens
        self._seed = request.seed
        self._dtype = token_dtype(request.model.vocab)

    def read(self, microbatch: int) -> bytes:
        """Tokens of a microbatch (B, T+1), as they are sent."""
        batch = self._corpus.sample(microbatch, self._sequences, self._tokens, self._seed)
        return batch.astype(self._dtype).tobytes()


def prepare(request: PrepareData) -> DataReady:
    """Check a source against the digest and keep its bytes at the path.

    Raises:
        WrongData: unusable, or other text than the swarm's.
        OSError: the disk is full or not writable.
    """
    path = Path(request.path)
    try:
        if (kept := find_kept(path, request.digest)) is not None:
            return DataReady(size_bytes=kept.size)
        if not request.source:
            raise WrongData("this machine does not have the swarm's training text")
        corpus = Corpus.open(request.source)
    except DataError as error:
        raise WrongData(str(error)) from error
    if corpus.digest != request.digest:
        raise WrongData(
            f"{corpus.name} has the digest {corpus.digest[:12]}, the swarm trains on text with "
            f"{request.digest[:12]}"
        )
    keep(corpus, path)
    return DataReady(size_bytes=corpus.size)


def kept_corpus(path: Path, tokenizer: str = DEFAULT) -> Corpus:
    """Open a text that was kept here, encrypted or not.

    Raises:
        DataError: it is empty or cannot be read.
    """
    try:
        if not at_rest.is_encrypted(path):
            return Corpus.from_bytes_file(path, tokenizer)
        data = np.frombuffer(at_rest.read_bytes(path), dtype=np.uint8)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    return Corpus(str(path), data, tokenizer)


def find_kept(path: Path, digest: str, tokenizer: str = DEFAULT) -> Corpus | None:
    """Return the text of a digest if it was kept at a path and is sound."""
    with suppress(DataError):
        corpus = kept_corpus(path, tokenizer)
        if corpus.digest == digest:
            return corpus
    return None


def keep(corpus: Corpus, path: Path) -> None:
    """Copy a corpus into a file of its bytes, replacing an earlier one.

    Raises:
        WrongData: its file was changed meanwhile.
        OSError: the disk is full or not writable.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    copied = blake2b(digest_size=32)
    try:
        with temporary.open("wb") as file, at_rest.writing(file) as out:
            for offset in range(0, corpus.size, _COPY_BYTES):
                data = corpus.read(offset, _COPY_BYTES)
                copied.update(data)
                out.write(data)
        if copied.hexdigest() != corpus.digest:
            raise WrongData(f"{corpus.name} was changed while it was copied")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
