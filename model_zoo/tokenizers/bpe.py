"""Byte-pair encoding by the `tokenizers` library, from a `tokenizer.json`.

The file comes from strangers, so it is checked before the library sees it: its size, its types and
the kinds of its parts. What a token stands for is read from the file, so the library is needed for
encoding only.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from model_zoo.data import Bytes, Tokens
from model_zoo.specs.lfs import POINTER, is_pointer
from model_zoo.specs.packages import load
from model_zoo.specs.state_hash import file_hash
from model_zoo.specs.tokens import (
    MAX_TOKENIZER_BYTES,
    MAX_VOCAB,
    ChatFormat,
    TokenizerSpec,
    token_dtype,
)

END_OF_TEXT = "<|endoftext|>"
_ENDS = (END_OF_TEXT, "<|end_of_text|>", "</s>", "<eos>", "[EOS]")
"""What tokenizers call the end of a text, the usual names first."""
MAX_TOKEN_CHARS = 4096
MAX_PATTERN_CHARS = 4096
_MAX_DEPTH = 16
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_PARTS = frozenset(
    {"Sequence", "ByteLevel", "ByteFallback", "Split", "Digits", "Fuse", "Strip", "Replace"}
    | {"NFC", "NFD", "NFKC", "NFKD", "Prepend", "Metaspace", "TemplateProcessing", "Lowercase"}
    | {"Punctuation", "Whitespace", "WhitespaceSplit"}
)


class BadTokenizer(ValueError):
    """A `tokenizer.json` cannot be used; the message says why."""


class _Added(msgspec.Struct, frozen=True):
    id: int
    content: str
    special: bool = False


class _Model(msgspec.Struct, frozen=True):
    vocab: dict[str, int]
    merges: list[str | tuple[str, str]]
    unk_token: str | None = None
    ignore_merges: bool | None = None
    continuing_subword_prefix: str | None = None
    end_of_word_suffix: str | None = None


class TokenizerFile(msgspec.Struct, frozen=True):
    """A `tokenizer.json`."""

    model: _Model
    added_tokens: list[_Added] = []
    normalizer: Any = None
    pre_tokenizer: Any = None
    post_processor: Any = None
    decoder: Any = None


class _AnyModel(msgspec.Struct, frozen=True):
    type: str = "BPE"  # old files leave it out


class _AnyFile(msgspec.Struct, frozen=True):
    """What all kinds of tokenizers have."""

    model: _AnyModel


class Bpe:
    """A tokenizer as its file describes it: text as UTF-8 to tokens and back, without state.

    Every token stands for one byte of text at least, except special ones, which stand for none.

    Args:
        data: the `tokenizer.json`.
        chat: how its model is talked to; None: unknown.

    Attributes:
        data, chat: as given.
        parsed: what the file says.
        file: the same `tokenizer.json`, of which other programs read the same numbers.
        vocab: one more than the largest token.
        end_of_text: the token that ends a text; None: the tokenizer has none.
        end_name: how the file writes it.

    Raises:
        BadTokenizer: the file is malformed, too large, or of a kind that is not supported.
    """

    def __init__(self, data: bytes, chat: ChatFormat | None = None) -> None:
        file = _parse(data)
        self.data, self.chat, self.parsed = data, chat, file
        self._tokens = _checked_tokens(file)
        _check_merges(file.model)
        self.file = _numbered(data, file)
        self.vocab = max(self._tokens) + 1
        if self.vocab > MAX_VOCAB:
            raise BadTokenizer(f"it has {self.vocab} tokens; {MAX_VOCAB} are supported")
        self._special = {added.id for added in file.added_tokens if added.special}
        self._bytes_of = _reader(file)
        added_ids = {added.content: added.id for added in file.added_tokens}
        self._ids = added_ids | file.model.vocab
        self.end_name = next((name for name in _ENDS if name in self._ids), None)
        self.end_of_text = None if self.end_name is None else self._ids[self.end_name]
        self._dtype = token_dtype(self.vocab)

    @property
    def digest(self) -> str:
        """Hash of the file, in hex."""
        return file_hash(self.data)

    def spec(self) -> TokenizerSpec:
        """Return what a manifest says of it: with the library that is installed here."""
        return TokenizerSpec(self.digest, len(self.data), self.vocab, library_version(), self.chat)

    @cached_property
    def byte_counts(self) -> Tokens:
        """Bytes of text that each token stands for; special tokens stand for none."""
        return np.array([len(self.decode(token)) for token in range(self.vocab)], dtype=np.uint32)

    def encode(self, text: Bytes) -> Tokens:
        """Return the tokens of a text; meant for a prompt. Bytes that are no UTF-8 are replaced."""
        found = self.encode_all([text.tobytes().decode("utf-8", "replace")])
        return next(iter(found))

    def encode_all(self, texts: Sequence[str]) -> Iterator[Tokens]:
        """Return the tokens of each text; words for special tokens in them are plain text.

        Raises:
            MissingPackage: the library is missing.
            BadTokenizer: it refuses the file.
        """
        for encoding in self._library.encode_batch_fast(texts, add_special_tokens=False):
            yield np.array(encoding.ids, dtype=self._dtype)

    def encode_marked(self, texts: Sequence[str]) -> Iterator[tuple[Tokens, NDArray[np.int64]]]:
        """Return the tokens of each text, with words for special tokens in it as such, and the
        character that each begins with.

        Raises:
            MissingPackage: the library is missing.
            BadTokenizer: it refuses the file.
        """
        for encoding in self._with_special_tokens.encode_batch(texts, add_special_tokens=False):
            starts = np.array([start for start, _ in encoding.offsets], dtype=np.int64)
            yield np.array(encoding.ids, dtype=self._dtype), starts

    @property
    def special_words(self) -> frozenset[str]:
        """The words of special tokens."""
        return frozenset(self._tokens[token] for token in self._special)

    def token_of(self, word: str) -> int | None:
        """Return the token of a word; None: it has none."""
        return self._ids.get(word)

    def decode(self, token: int) -> bytes:
        """Return the bytes that a token stands for; they may end within a character. Special
        tokens stand for none."""
        if token in self._special or (word := self._tokens.get(token)) is None:
            return b""
        return self._bytes_of(word)

    @cached_property
    def _library(self) -> Any:
        tokenizer = self._opened()
        tokenizer.encode_special_tokens = True  # a text cannot forge its own end
        return tokenizer

    @cached_property
    def _with_special_tokens(self) -> Any:
        return self._opened()

    def check(self) -> None:
        """Raise MissingPackage without the library, BadTokenizer if it refuses the file."""
        self._opened()

    def _opened(self) -> Any:
        tokenizer = _guarded(load("tokenizers").Tokenizer.from_buffer, self.file)
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return tokenizer


def train(texts: Iterable[str], vocab: int) -> Bpe:
    """Return a byte-level tokenizer trained on texts: GPT-2's, with a vocabulary of its own.

    It has fewer tokens than ``vocab`` where the texts have too few pairs.

    Raises:
        MissingPackage: the library is missing.
        BadTokenizer: ``vocab`` is out of range.
    """
    if not 257 <= vocab <= MAX_VOCAB:
        raise BadTokenizer(f"a vocabulary has 257 to {MAX_VOCAB} tokens, not {vocab}")
    library = load("tokenizers")
    tokenizer = library.Tokenizer(library.models.BPE())
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(library.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    _guarded(tokenizer.train_from_iterator, texts, trainer)
    return Bpe(tokenizer.to_str().encode())


def library_version() -> str:
    """Return the version of the library."""
    return str(load("tokenizers").__version__)


def _guarded(call: Any, *arguments: Any) -> Any:
    """Call the library; its panics, which are no ``Exception``, become errors like its others."""
    try:
        return call(*arguments)
    except (KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError):
        raise
    except BaseException as error:
        raise BadTokenizer(f"the tokenizers library refuses it: {str(error)[:200]}") from error


def _parse(data: bytes) -> TokenizerFile:
    if len(data) > MAX_TOKENIZER_BYTES:
        raise BadTokenizer(f"it has {len(data)} bytes; {MAX_TOKENIZER_BYTES} are supported")
    if is_pointer(data):
        raise BadTokenizer(f"it {POINTER}")
    try:
        kind = msgspec.json.decode(data, type=_AnyFile).model.type
        if kind != "BPE":
            raise BadTokenizer(
                f"it is a tokenizer by {kind[:40]}, and only byte-pair encoding works, such as the "
                "tokenizers of GPT-2, Llama, Mistral and Qwen, or a new one: train:16384"
            )
        file = msgspec.json.decode(data, type=TokenizerFile)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadTokenizer(f"it is no tokenizer.json of byte-pair encoding: {error}") from error
    for part in (file.normalizer, file.pre_tokenizer, file.post_processor, file.decoder):
        _check_part(part, 0)
    return file


def _check_merges(model: _Model) -> None:
    """Refuse merges of words, or into words, that are not in the vocabulary."""
    vocab, prefix = model.vocab, model.continuing_subword_prefix or ""
    for merge in model.merges:
        left, _, right = (
            merge.partition(" ") if isinstance(merge, str) else (merge[0], "", merge[1])
        )
        whole = left + right.removeprefix(prefix)
        if left not in vocab or right not in vocab or whole not in vocab:
            words = f"its merge of {left[:40]!r} and {right[:40]!r}"
            raise BadTokenizer(f"{words} needs words that are not in its vocabulary")


def _numbered(data: bytes, file: TokenizerFile) -> bytes:
    """Return a file in which every added token is a word of the vocabulary, if it has to be.

    The library gives the others the numbers that follow the vocabulary, whatever the file says.
    """
    vocab = file.model.vocab
    others = {one.content: one.id for one in file.added_tokens if one.content not in vocab}
    if list(others.values()) == list(range(len(vocab), len(vocab) + len(others))):
        return data
    whole = msgspec.json.decode(data)
    whole["model"]["vocab"] |= others
    return msgspec.json.encode(whole)


def _check_part(part: Any, depth: int) -> None:
    """Refuse unknown kinds, long patterns and deep nesting, wherever they are in a part."""
    if depth > _MAX_DEPTH:
        raise BadTokenizer("its parts are nested too deeply")
    if isinstance(part, str) and len(part) > MAX_PATTERN_CHARS:
        raise BadTokenizer("a pattern in it is too long")
    if isinstance(part, dict):
        kind = part.get("type")
        if isinstance(kind, str) and kind not in _PARTS:
            raise BadTokenizer(f"its part {kind[:40]} is not supported")
    inside = part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
    for value in inside:
        _check_part(value, depth + 1)


def _checked_tokens(file: TokenizerFile) -> dict[int, str]:
    """Return the words by token; each token has one word."""
    words: dict[int, str] = {}
    named = [(added.content, added.id) for added in file.added_tokens]
    for word, token in (*file.model.vocab.items(), *named):
        if not 0 <= token < MAX_VOCAB:
            raise BadTokenizer(f"its token {token} is not below {MAX_VOCAB}")
        if not word or len(word) > MAX_TOKEN_CHARS:
            raise BadTokenizer(f"its token {token} has {len(word)} characters")
        if words.setdefault(token, word) != word:
            raise BadTokenizer(f"its token {token} stands for two words")
    if len(file.model.vocab) < 2 or len(file.model.merges) > MAX_VOCAB:
        raise BadTokenizer("it has no vocabulary, or more merges than tokens")
    return words


def _reader(file: TokenizerFile) -> Callable[[str], bytes]:
    """Return the function from a word of the vocabulary to the bytes that it stands for."""
    added = {token.content for token in file.added_tokens}
    kinds = set(_kinds(file.decoder)) | set(_kinds(file.pre_tokenizer))
    if "ByteLevel" in kinds:
        table = _byte_level()
        return lambda word: word.encode() if word in added else _through(table, word)
    if "ByteFallback" in kinds:
        return _fallback_bytes
    raise BadTokenizer("it is neither byte-level nor falls back to bytes: some text has no tokens")


def _kinds(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        if isinstance(part.get("type"), str):
            yield part["type"]
        for value in part.values():
            yield from _kinds(value)
    elif isinstance(part, list):
        for value in part:
            yield from _kinds(value)


def _byte_level() -> dict[str, int]:
    """Return GPT-2's letters for the 256 bytes: printable ones stand for themselves."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in set(plain)]
    table = {chr(byte): byte for byte in plain}
    return table | {chr(256 + at): byte for at, byte in enumerate(others)}


def _through(table: dict[str, int], word: str) -> bytes:
    return b"".join(bytes([table[c]]) if c in table else c.encode() for c in word)


def _fallback_bytes(word: str) -> bytes:
    if match := _BYTE.fullmatch(word):
        return bytes([int(match[1], 16)])
    return word.replace("▁", " ").encode()


def byte_tokenizer() -> Bpe:
    """Return the tokenizer whose tokens are bytes, for programs that need a `tokenizer.json`."""
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    file = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": level | {"use_regex": False},
        "decoder": level,
        "model": {"type": "BPE", "vocab": _byte_level(), "merges": []},
    }
    return Bpe(msgspec.json.encode(file))


def end_word(tokenizer: Bpe) -> str | None:
    """Return the word of the token with which the model ends what it says; None: there is none."""
    said = tokenizer.chat.eos if tokenizer.chat else ""
    return tokenizer.end_name if tokenizer.token_of(said) is None else said


def end_token(tokenizer: Bpe) -> int | None:
    """Return the token of `end_word`."""
    word = end_word(tokenizer)
    return None if word is None else tokenizer.token_of(word)
