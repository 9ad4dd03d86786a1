"""Token data to train on: samples by number, each window once an epoch."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial

import numpy as np

from model_zoo.data import DataError, Tokens, plain_tokens
from model_zoo.datasets.folder import Folder, read_leaf
from model_zoo.specs.data import Answers, DataSpec
from model_zoo.specs.merkle import LEAF_BYTES
from model_zoo.specs.mixture import Mixture
from model_zoo.specs.tokens import NOT_LEARNED, token_dtype
from model_zoo.specs.windows import Windows
from model_zoo.tokenizers.bpe import Bpe


class Corpus:
    """Tokens in shards, and what made them. Holds no position and no random state.

    Samples are those of `specs.windows`: a window comes once in an epoch, and held-out ones never.

    Args:
        read_leaf: returns bytes of a leaf of the tokens, by number, offset and size.
        spec: what is said of the tokens; their digest is not checked.
        tokenizer: what made them; None: it is not here, or they are bytes.
    """

    def __init__(
        self,
        read_leaf: Callable[[int, int, int], bytes],
        spec: DataSpec,
        tokenizer: Bpe | None = None,
    ) -> None:
        self.spec, self.tokenizer = spec, tokenizer
        self._read_leaf = read_leaf
        self._width = spec.token_bytes
        self._dtype = token_dtype(spec.vocab, masked=spec.masked)
        self._windows_of = lru_cache(maxsize=4)(self._new_windows)

    @classmethod
    def from_folder(cls, folder: Folder) -> Corpus:
        """The tokens of a data folder."""
        spec = folder.index.spec
        return cls(partial(read_leaf, folder.shards), spec, folder.tokenizer)

    def check(self, context: int) -> None:
        """Raise DataError unless there are samples of that context, to train on and held out."""
        self._windows_of(context)

    def sample(self, microbatch_id: int, sequences: int, context: int, seed: int) -> Tokens:
        """Return a microbatch's samples, (B, T + 1) integers: inputs [:, :-1], targets [:, 1:].

        A pure function of its arguments and the data: the next samples in the run's order.

        Args:
            microbatch_id: number of the microbatch in the run.
            sequences: B.
            context: T.
            seed: of the run.

        Raises:
            DataError: there are too few tokens, or they were cut for another context.
        """
        windows, first = self._windows_of(context), microbatch_id * sequences
        starts = [windows.training_start(first + row, seed) for row in range(sequences)]
        return self._read_windows(starts, context)

    def held_out_batch(self, index: int, sequences: int, context: int) -> Tokens:
        """Return held-out samples (B, T + 1), the same in every swarm on these data.

        ``index`` numbers the batches, ``sequences`` is B, ``context`` is T.
        """
        windows, first = self._windows_of(context), index * sequences
        starts = [windows.held_out_start(first + row) for row in range(sequences)]
        return self._read_windows(starts, context)

    def bytes_of(self, tokens: Tokens) -> int:
        """Return the bytes of text that tokens stand for, without those that are not learned."""
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
        found, end = b"", offset + size
        while offset < end:
            leaf, at = divmod(offset, LEAF_BYTES)
            found += self._read_leaf(leaf, at, min(end - offset, LEAF_BYTES - at))
            offset = (leaf + 1) * LEAF_BYTES
        return found

    def _new_windows(self, context: int) -> Windows | Mixture:
        cut = self.spec.answers.context if isinstance(self.spec.answers, Answers) else context
        if context != cut:
            raise DataError(
                f"{self.spec.name} has conversations that were cut for a context of {cut}, not of "
                f"{context}: choose --context {cut}, or build them again"
            )
        try:
            return self.spec.windows(context)
        except ValueError as error:
            small = min(self.spec.parts, key=self.spec.part_tokens, default=None)
            tokens = self.spec.part_tokens(small) if small else self.spec.tokens
            name = f"the part {small.name} of {self.spec.name}" if small else self.spec.name
            raise DataError(
                f"{name} has {tokens} tokens, and a sample needs {context + 1}, for training and "
                "held out: give more text or choose a shorter context"
            ) from error
