"""Token data to train on: samples by number, each window once an epoch."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np

from model_zoo.data import BUILT_IN, Corpus, DataError, plain_tokens
from model_zoo.datasets.folder import Folder, leaves_of, open_folder
from model_zoo.datasets.sources import read_text
from model_zoo.specs.data import Answers, DataSpec
from model_zoo.specs.merkle import LEAF_BYTES, leaf_digest, root
from model_zoo.specs.mixture import Mixture
from model_zoo.specs.tokens import NOT_LEARNED, token_dtype
from model_zoo.specs.windows import Windows
from model_zoo.tokenizers.arrays import Bytes, Tokens
from model_zoo.tokenizers.bpe import Bpe


class TokenCorpus(Corpus):
    """Tokens in shards, and what made them.

    Samples are those of `specs.windows`: a window comes once in an epoch, and held-out ones never.

    Args:
        name: where the tokens come from, for people.
        shards: the tokens as bytes; no token lies in two of them.
        spec: what is said of the tokens; their digest is not checked.
        tokenizer: what made them; None: they are bytes.
    """

    def __init__(
        self, name: str, shards: list[Bytes], spec: DataSpec, tokenizer: Bpe | None
    ) -> None:
        self.name, self.spec, self.tokenizer = name, spec, tokenizer
        self.size = spec.size_bytes
        self._shards = shards
        self._width = spec.token_bytes
        self._dtype = token_dtype(spec.vocab, masked=spec.masked)
        self._windows_of = lru_cache(maxsize=4)(self._new_windows)

    @classmethod
    def from_folder(cls, folder: Folder) -> TokenCorpus:
        """The tokens of a data folder."""
        spec = folder.index.spec()
        return cls(str(folder.path), list(folder.shards), spec, folder.tokenizer)

    @cached_property
    def digest(self) -> str:  # type: ignore[override]
        """Root over the leaves of the tokens, in hex, computed from their bytes."""
        return root(leaf_digest(leaf) for leaf in leaves_of(self._shards)).hex()

    def read(self, offset: int, size: int) -> bytes:
        """See `Corpus`."""
        if offset < 0 or size < 0:
            raise ValueError(f"offset and size must not be negative: {offset}, {size}")
        return self._read_tokens(offset, size)

    def sample(self, microbatch_id: int, sequences: int, context: int, seed: int) -> Tokens:
        """See `Corpus`: the microbatch's samples are the next in the run's order."""
        windows, first = self._windows_of(context), microbatch_id * sequences
        starts = [windows.training_start(first + row, seed) for row in range(sequences)]
        return self._read_windows(starts, context)

    def held_out_batch(self, index: int, sequences: int, context: int) -> Tokens:
        """See `Corpus`."""
        windows, first = self._windows_of(context), index * sequences
        starts = [windows.held_out_start(first + row) for row in range(sequences)]
        return self._read_windows(starts, context)

    @property
    def loss_weight(self) -> float:
        """See `Corpus`."""
        return self.spec.loss_weight

    def bytes_of(self, tokens: Tokens) -> int:
        """See `Corpus`."""
        tokens = tokens[tokens < NOT_LEARNED]
        return int(self.tokenizer.byte_counts[tokens].sum()) if self.tokenizer else tokens.size

    def text_of(self, tokens: Tokens) -> str:
        """Return the text of tokens; bytes that are no whole characters are replaced."""
        tokens = plain_tokens(tokens)
        decode = self.tokenizer.decode if self.tokenizer else lambda token: bytes([token & 255])
        return b"".join(decode(int(token)) for token in tokens).decode("utf-8", "replace")

    def _read_windows(self, starts: list[int], context: int) -> Tokens:
        size = (context + 1) * self._width
        rows = [self._read_tokens(start * self._width, size) for start in starts]
        return np.stack([np.frombuffer(row, dtype=self._dtype) for row in rows])

    def _read_tokens(self, offset: int, size: int) -> bytes:
        return _slice(self._shards, offset, size)

    def _new_windows(self, context: int) -> Windows | Mixture:
        cut = self.spec.answers.context if isinstance(self.spec.answers, Answers) else context
        if context != cut:
            raise DataError(
                f"{self.name} has conversations that were cut for a context of {cut}, not of "
                f"{context}: choose --context {cut}, or build them again"
            )
        try:
            return self.spec.windows(context)
        except ValueError as error:
            small = min(self.spec.parts, key=self.spec.part_tokens, default=None)
            tokens = self.spec.part_tokens(small) if small else self.spec.tokens
            name = f"the part {small.name} of {self.name}" if small else self.name
            raise DataError(
                f"{name} has {tokens} tokens, and a sample needs {context + 1}, for training and "
                "held out: give more text or choose a shorter context"
            ) from error


class LeafCorpus(TokenCorpus):
    """Tokens of which some leaves are here; samples of these can be read.

    Args:
        name: where the tokens come from, for people.
        spec: what is said of the tokens.
        read_leaf: returns bytes of a leaf that is here, by number, offset and size.
        tokenizer: what made them; None: it is not here, or they are bytes.
    """

    def __init__(
        self,
        name: str,
        spec: DataSpec,
        read_leaf: Callable[[int, int, int], bytes],
        tokenizer: Bpe | None = None,
    ) -> None:
        super().__init__(name, [], spec, tokenizer)
        self._read_leaf = read_leaf

    @property
    def digest(self) -> str:  # type: ignore[override]
        """Root that every leaf was proven against when it was fetched, in hex."""
        return self.spec.digest

    def _read_tokens(self, offset: int, size: int) -> bytes:
        found, end = b"", offset + size
        while offset < end:
            leaf, at = divmod(offset, LEAF_BYTES)
            found += self._read_leaf(leaf, at, min(end - offset, LEAF_BYTES - at))
            offset = (leaf + 1) * LEAF_BYTES
        return found


def open_source(source: str) -> Corpus:
    """Open Python's own source, a data folder, or any file with text.

    Args:
        source: `stdlib`, or a path.

    Raises:
        DataError: the source is missing, empty, unreadable or no text.
    """
    if source == BUILT_IN:
        return Corpus.from_stdlib()
    path = Path(source).expanduser()
    if path.is_dir():
        return TokenCorpus.from_folder(open_folder(path))
    return Corpus(str(path), read_text(path))


def _slice(shards: list[Bytes], offset: int, size: int) -> bytes:
    """Return bytes of shards that lie one behind the other; fewer at the end."""
    found = []
    for shard in shards:
        part = shard[max(0, offset) : max(0, offset + size)]
        if part.size:
            found.append(part.tobytes())
        offset -= shard.size
    return b"".join(found)
