"""The training text on the worker's side, read by microbatch id.

A text is checked against its digest and kept as one file of its bytes, whatever its source was, so
that it can be mapped here and served in chunks to volunteers who do not have it. Tokens are a
folder: a data folder, or a cache of leaves that the node fills before it asks for a microbatch.
"""

import os
from contextlib import suppress
from pathlib import Path

from client.compute.errors import WrongData
from client.compute.requests import Done, OpenStage, PrepareData
from model_zoo.data import Corpus, DataError
from model_zoo.datasets.corpus import LeafCorpus, open_source
from model_zoo.specs.data import DataSpec
from model_zoo.specs.merkle import LEAF_BYTES
from model_zoo.specs.shards import INDEX, SHARD_BYTES, leaf_name, shard_name
from model_zoo.specs.tokens import token_dtype, token_values
from model_zoo.tokenizers.arrays import Tokens

_COPY_BYTES = 4 << 20


class Samples:
    """Reads the samples of an id; the manifest's seed and microbatch shape are fixed."""

    def __init__(self, request: OpenStage) -> None:
        try:
            path = Path(request.corpus)
            self._corpus = _opened(path, request)
        except DataError as error:
            raise WrongData(str(error)) from error
        self._sequences, self._tokens = request.sequences, request.tokens
        self._seed = request.seed
        self._vocab = request.model.vocab
        self._bits = {"masked": request.masked, "packed": request.packed}
        self._dtype = token_dtype(self._vocab, masked=request.masked)

    def read(self, microbatch: int) -> bytes:
        """Tokens of a microbatch (B, T+1), as they are sent; held-out ones have negative numbers.

        Raises:
            WrongData: they are not here, or none of the tokenizer's: the founder signed for them.
        """
        try:
            batch = self._batch(microbatch)
        except (OSError, ValueError) as error:  # a leaf was removed, or has become shorter
            raise WrongData(f"microbatch {microbatch} cannot be read: {error}") from error
        if int(token_values(batch, **self._bits).max()) >= self._vocab:
            raise WrongData(f"microbatch {microbatch} has tokens beyond the vocabulary")
        return batch.astype(self._dtype).tobytes()

    def _batch(self, microbatch: int) -> Tokens:
        size = self._sequences, self._tokens
        if microbatch < 0:
            return self._corpus.held_out_batch(-1 - microbatch, *size)
        return self._corpus.sample(microbatch, *size, self._seed)


def _opened(path: Path, request: OpenStage) -> Corpus:
    if request.token_data is not None:
        return token_corpus(path, request.token_data)
    corpus = Corpus.from_bytes_file(path)
    corpus.check(request.tokens)
    return corpus


def prepare(request: PrepareData) -> Done:
    """Check a source against the digest and keep its bytes at the path.

    Raises:
        WrongData: unusable, or other text than the swarm's.
        OSError: the disk is full or not writable.
    """
    path = Path(request.path)
    try:
        if find_kept(path, request.digest) is not None:
            return Done()
        if not request.source:
            raise WrongData("this machine does not have the swarm's training text")
        corpus = find_text(request.source, request.digest)
    except DataError as error:
        raise WrongData(str(error)) from error
    if corpus.digest != request.digest:
        raise WrongData(
            f"{corpus.name} has the digest {corpus.digest[:12]}, the swarm trains on text with "
            f"{request.digest[:12]}"
        )
    keep(corpus, path)
    return Done()


def token_corpus(folder: Path, data: DataSpec) -> LeafCorpus:
    """Open a data folder or a cache of leaves whose bytes the node has proven.

    Args:
        folder: of shards, or of leaves.
        data: what the manifest says of the tokens.
    """

    def read_leaf(index: int, offset: int, size: int) -> bytes:
        name, place = leaf_name(index), offset
        if whole:
            number, place = divmod(index * LEAF_BYTES + offset, SHARD_BYTES)
            name = shard_name(number)
        with (folder / name).open("rb") as file:
            file.seek(place)
            return file.read(size)

    whole = (folder / INDEX).exists()
    return LeafCorpus(str(folder), data, read_leaf)


def find_kept(path: Path, digest: str) -> Corpus | None:
    """Return the text of a digest if it was kept at a path and is sound."""
    with suppress(DataError):
        corpus = Corpus.from_bytes_file(path)
        if corpus.digest == digest:
            return corpus
    return None


def find_text(source: str, digest: str) -> Corpus:
    """Return the text of a source: the bytes of a file that have the digest, whatever its name and
    kind, or what is read of it. Its digest may be another.

    Raises:
        DataError: the source cannot be read, or has no text.
    """
    kept = find_kept(Path(source).expanduser(), digest)
    return open_source(source) if kept is None else kept


def keep(corpus: Corpus, path: Path) -> None:
    """Copy a corpus into a file of its bytes, replacing an earlier one.

    Raises:
        WrongData: its file was changed meanwhile.
        OSError: the disk is full or not writable.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    update, digest = corpus.digest_of_copy()
    try:
        with temporary.open("wb") as file:
            for offset in range(0, corpus.size, _COPY_BYTES):
                data = corpus.read(offset, _COPY_BYTES)
                update(data)
                file.write(data)
        if digest() != corpus.digest:
            raise WrongData(f"{corpus.name} was changed while it was copied")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
