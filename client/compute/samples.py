"""The training data on the worker's side, read by microbatch id.

They are a data folder, or a cache of leaves that the node fills before it asks for a microbatch.
"""

from pathlib import Path

from client.compute.errors import WrongData
from client.compute.requests import OpenStage
from model_zoo.data import DataError, Tokens
from model_zoo.datasets.corpus import Corpus
from model_zoo.specs.data import DataSpec
from model_zoo.specs.merkle import LEAF_BYTES
from model_zoo.specs.shards import INDEX, SHARD_BYTES, leaf_name, shard_name
from model_zoo.specs.tokens import token_dtype, token_values


class Samples:
    """Reads the samples of an id; the manifest's seed and microbatch shape are fixed."""

    def __init__(self, request: OpenStage) -> None:
        self._run = request.manifest
        self._corpus = token_corpus(Path(request.corpus), self._run.data)
        try:
            self._corpus.check(self._run.model.context)
        except DataError as error:
            raise WrongData(str(error)) from error

    def read(self, microbatch: int) -> bytes:
        """Tokens of a microbatch (B, T+1), as they are sent; held-out ones have negative numbers.

        Raises:
            WrongData: they are not here, or none of the tokenizer's: the founder signed for them.
        """
        try:
            batch = self._batch(microbatch)
        except (OSError, ValueError) as error:  # a leaf was removed, or has become shorter
            raise WrongData(f"microbatch {microbatch} cannot be read: {error}") from error
        vocab, masked = self._run.model.vocab, self._run.data.masked
        if int(token_values(batch, masked=masked).max()) >= vocab:
            raise WrongData(f"microbatch {microbatch} has tokens beyond the vocabulary")
        return batch.astype(token_dtype(vocab, masked=masked)).tobytes()

    def _batch(self, microbatch: int) -> Tokens:
        size = self._run.sequences_per_microbatch, self._run.model.context
        if microbatch < 0:
            return self._corpus.held_out_batch(-1 - microbatch, *size)
        return self._corpus.sample(microbatch, *size, self._run.seed)


def token_corpus(folder: Path, data: DataSpec) -> Corpus:
    """Open a data folder or a cache of leaves whose bytes the node has proven."""

    def read_leaf(index: int, offset: int, size: int) -> bytes:
        name, place = leaf_name(index), offset
        if whole:
            number, place = divmod(index * LEAF_BYTES + offset, SHARD_BYTES)
            name = shard_name(number)
        with (folder / name).open("rb") as file:
            file.seek(place)
            return file.read(size)

    whole = (folder / INDEX).exists()
    return Corpus(read_leaf, data)
