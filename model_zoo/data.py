"""Training text: its digest, and which samples an id stands for.

A corpus is a read-only array of bytes, which are its tokens; the first 90 % train, the last 10 %
are held out. A microbatch id fixes its samples through BLAKE2b, so that any peer, in any release,
reads the same tokens for the same id. Holds no position and no random state.
"""

import os
import sysconfig
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from model_zoo.specs.data import training_size
from model_zoo.specs.tokens import BEGINS, BYTE_VOCAB, NOT_LEARNED, token_dtype
from model_zoo.tokenizers.arrays import Bytes, Tokens

BUILT_IN = "stdlib"
NO_TARGET = -100
"""Stands for a target whose loss is not counted, as torch's cross-entropy has it."""
_BUILT_IN_SIZE_BYTES = 8_000_000

# Tests and generated number tables are poor prose; some systems package the others apart.
_SKIPPED_FOLDERS = frozenset(
    {"__pycache__", "site-packages", "dist-packages", "test", "tests", "idle_test", "encodings"}
    | {"ensurepip", "idlelib", "lib2to3", "tkinter", "turtledemo", "distutils"}
)
_BUILD_RECORD = "_sysconfigdata"  # differs on every machine


class DataError(Exception):
    """A data source cannot be used; the message says which, why and what would do."""


class Corpus:
    """Text to train on, split into a training and a held-out part.

    Attributes:
        name: where the bytes come from, for people.
        size: number of bytes.
        digest: BLAKE2b-256 of all bytes, hexadecimal.

    Args:
        name: where the bytes come from, for people.
        data: the whole text, uint8.

    Raises:
        DataError: the text is empty.
    """

    def __init__(self, name: str, data: Bytes) -> None:
        if not data.size:
            raise DataError(f"{name} is empty; a corpus needs text")
        self.name = name
        self.size = int(data.size)
        self.digest = _digest(data)
        self._data = data
        self._dtype = token_dtype(BYTE_VOCAB)
        border = training_size(self.size)
        self._training, self._held_out = data[:border], data[border:]

    @classmethod
    def from_stdlib(cls, folder: Path | None = None) -> "Corpus":
        """Return the source text of Python's standard library, which needs no download.

        Files in the order of their paths up to 8 MB, with normalised line ends. The digest differs
        between releases of Python.
        """
        root = folder or Path(sysconfig.get_path("stdlib"))
        try:
            text = _join_sources(root)
        except OSError as error:
            raise DataError(f"cannot read Python's own source in {root}: {error}") from error
        return cls(BUILT_IN, np.frombuffer(text, dtype=np.uint8))

    @classmethod
    def from_bytes_file(cls, path: Path) -> "Corpus":
        """The bytes of a file as they are, mapped and not copied; do not shorten it until then."""
        try:
            if not path.stat().st_size:
                raise DataError(f"{path} is empty; a corpus needs text")
            data = np.memmap(path, dtype=np.uint8, mode="r")
        except OSError as error:
            raise DataError(f"cannot read {path}: {error.strerror or error}") from error
        return cls(str(path), data)

    def read(self, offset: int, size: int) -> bytes:
        """Bytes [offset, offset + size) of the corpus, fewer at its end; for peers that copy it."""
        if offset < 0 or size < 0:
            raise ValueError(f"offset and size must not be negative: {offset}, {size}")
        return self._data[offset : offset + size].tobytes()

    def sample(self, microbatch_id: int, sequences: int, context: int, seed: int) -> Tokens:
        """Return a microbatch's samples, (B, T + 1) integers: inputs [:, :-1], targets [:, 1:].

        A pure function of its arguments and the corpus.

        Args:
            microbatch_id: number of the microbatch in the run.
            sequences: B.
            context: T.
            seed: of the run.

        Raises:
            DataError: the training text is shorter than one sample.
        """
        return self._windows("training", self._training, microbatch_id, sequences, context, seed)

    def held_out_batch(self, index: int, sequences: int, context: int) -> Tokens:
        """Return held-out samples (B, T + 1), the same in every swarm on this corpus.

        ``index`` numbers the batches, ``sequences`` is B, ``context`` is T.
        """
        return self._windows("held-out", self._held_out, index, sequences, context, seed=0)

    @property
    def loss_weight(self) -> float:
        """What the loss of a learned token is multiplied with: see `DataSpec.loss_weight`."""
        return 1

    def bytes_of(self, tokens: Tokens) -> int:
        """Return the bytes of text that tokens stand for, without those that are not learned."""
        return tokens.size

    def digest_of_copy(self) -> tuple[Callable[[bytes], None], Callable[[], str]]:
        """Return a function that takes the bytes of a copy one after the other, and one that then
        says the digest of the copy."""
        state = blake2b(digest_size=32)
        return state.update, state.hexdigest

    def check(self, context: int) -> None:
        """Raise DataError unless both parts of the text hold at least one sample."""
        self.sample(0, 1, context, seed=0)
        self.held_out_batch(0, 1, context)

    def _windows(
        self, split: str, data: Tokens, index: int, sequences: int, context: int, seed: int
    ) -> Tokens:
        starts = data.size - context  # a window reads context + 1 tokens
        if starts < 1:
            raise DataError(
                f"{self.name}: the {split} text has {data.size} bytes, one sample needs "
                f"{context + 1}; give a longer text or choose a shorter context"
            )
        offsets = [_draw(split, seed, index, row) % starts for row in range(sequences)]
        return np.stack([data[o : o + context + 1] for o in offsets]).astype(self._dtype)


def plain_tokens(tokens: Tokens) -> Tokens:
    """Return tokens without their bits: of those that are not learned, of those that begin."""
    return tokens & np.uint32(BEGINS - 1) if tokens.dtype.itemsize == 4 else tokens


def beginnings(samples: Tokens) -> NDArray[np.bool_]:
    """Return with which inputs (B, T) of samples (B, T + 1) a document begins, beside the first."""
    inputs = samples[:, :-1]
    return inputs & np.uint32(BEGINS) > 0 if inputs.dtype.itemsize == 4 else inputs < 0


def inputs_and_targets(samples: Tokens) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return inputs and targets (B, T) of samples (B, T + 1); a target that is not learned is
    `NO_TARGET`."""
    tokens = plain_tokens(samples).astype(np.int64)
    targets = tokens[:, 1:]
    if samples.dtype.itemsize == 4:
        targets = np.where(samples[:, 1:] >= NOT_LEARNED, NO_TARGET, targets)
    return tokens[:, :-1], targets


def _draw(split: str, seed: int, index: int, row: int) -> int:
    key = f"volunteer sample {split} {seed} {index} {row}".encode()
    return int.from_bytes(blake2b(key, digest_size=8).digest(), "little")


def _digest(data: Bytes) -> str:
    state = blake2b(digest_size=32)
    for start in range(0, data.size, 1 << 22):
        state.update(data[start : start + (1 << 22)].data)
    return state.hexdigest()


def _join_sources(root: Path) -> bytes:
    parts: list[bytes] = []
    size = 0
    for name in sorted(_source_files(root)):
        text = (root / name).read_bytes().decode("utf-8", "ignore").replace("\r\n", "\n").encode()
        parts.append(text)
        size += len(text)
        if size >= _BUILT_IN_SIZE_BYTES:
            break
    return b"".join(parts)[:_BUILT_IN_SIZE_BYTES]


def _source_files(root: Path) -> Iterator[str]:
    for folder, subfolders, files in os.walk(root):
        subfolders[:] = [name for name in subfolders if name not in _SKIPPED_FOLDERS]
        inside = Path(folder).relative_to(root)
        for name in files:
            if name.endswith(".py") and not name.startswith(_BUILD_RECORD):
                yield (inside / name).as_posix()
