"""The training text on the worker's side: checked against its digest, read by microbatch id.

The text is kept as one file of plain bytes, whatever its source was, so that it can be mapped here
and served in chunks to volunteers who do not have it.
"""

import os
from pathlib import Path

from client.compute.errors import WrongData
from client.compute.replies import DataReady
from client.compute.requests import OpenStage, PrepareData
from model_zoo.data import Corpus, DataError

_COPY_BYTES = 4 << 20


class Samples:
    """Reads the samples of an id; the manifest's seed and microbatch shape are fixed."""

    def __init__(self, request: OpenStage) -> None:
        try:
            self._corpus = Corpus.from_bytes_file(Path(request.corpus))
            self._corpus.check(request.tokens)
        except DataError as error:
            raise WrongData(str(error)) from error
        self._sequences, self._tokens = request.sequences, request.tokens
        self._seed = request.seed

    def read(self, microbatch: int) -> bytes:
        """Tokens of a microbatch, uint16 little-endian (B, T+1)."""
        batch = self._corpus.sample(microbatch, self._sequences, self._tokens, self._seed)
        return batch.astype("<u2").tobytes()


def prepare(request: PrepareData) -> DataReady:
    """Check a source against the digest and keep its bytes at the path.

    Raises:
        WrongData: unusable, or other text than the swarm's.
        OSError: the disk is full or not writable.
    """
    path = Path(request.path)
    try:
        if path.exists() and Corpus.from_bytes_file(path).digest == request.digest:
            return DataReady(size_bytes=path.stat().st_size)
        corpus = Corpus.open(request.source)
    except DataError as error:
        raise WrongData(str(error)) from error
    if corpus.digest != request.digest:
        raise WrongData(
            f"{corpus.name} has the digest {corpus.digest[:12]}, the swarm trains on text with "
            f"{request.digest[:12]}"
        )
    _keep(corpus, path)
    return DataReady(size_bytes=corpus.size)


def _keep(corpus: Corpus, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            for offset in range(0, corpus.size, _COPY_BYTES):
                file.write(corpus.read(offset, _COPY_BYTES))
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
