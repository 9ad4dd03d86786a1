"""A tokenizer as llama.cpp knows it: its words, what each of them is, and how a text is cut.

llama.cpp has the patterns that cut a text by name. A pattern that it does not have is refused: the
text would be cut otherwise than in training, silently.
"""

from collections.abc import Iterator
from typing import Any, Final

import msgspec
from msgspec import Struct

from model_zoo.llama_cpp.architecture import NotInGguf
from model_zoo.specs.family import Keys
from model_zoo.tokenizers.bpe import Bpe, TokenizerFile, end_token

_NORMAL, _UNKNOWN, _CONTROL, _USER, _UNUSED, _BYTE = 1, 2, 3, 4, 5, 6
"""Kinds of words."""
_TAIL: Final = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_HEAD: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_PATTERNS: Final = {
    (_HEAD + r"\p{N}{1,3}" + _TAIL, True): "llama-bpe",
    (_HEAD + r"\p{N}{1,3}" + _TAIL, False): "dbrx",
    (_HEAD + r"\p{N}" + _TAIL, False): "qwen2",
}
"""llama.cpp's names of patterns, by the pattern and whether whole words need no merges."""
_NEVER: Final = "\ue000 \ue001"
"""A merge of two letters that no byte is written as: it has no effect. A list must not be empty."""


class _Special(Struct, frozen=True):
    id: str


class _Piece(Struct, frozen=True, rename={"special": "SpecialToken"}):
    special: _Special | None = None  # None: the text itself


class _Ids(Struct, frozen=True):
    ids: list[int]


class _Template(Struct, frozen=True):
    single: list[_Piece]
    special_tokens: dict[str, _Ids]


def vocabulary(tokenizer: Bpe, vocab: int) -> Keys:
    """Return what a GGUF file says of a tokenizer.

    Args:
        tokenizer: what made the model's tokens; `byte_tokenizer()` where they are bytes.
        vocab: tokens that the model has; it may have more than the tokenizer.

    Raises:
        NotInGguf: llama.cpp would cut a text otherwise.
    """
    file = tokenizer.parsed
    if file.model.continuing_subword_prefix or file.model.end_of_word_suffix:
        raise NotInGguf("llama.cpp has no tokenizer that marks the ends of words")
    kinds = {part["type"] for whole in (file.pre_tokenizer, file.decoder) for part in _flat(whole)}
    own = _byte_level(file) if "ByteLevel" in kinds else _sentence_piece(file, vocab)
    own |= _words(file, vocab, byte_level="ByteLevel" in kinds)
    own |= _ends(file, tokenizer, vocab)
    found = {f"tokenizer.ggml.{key}": value for key, value in own.items()}
    if tokenizer.chat is not None:
        found["tokenizer.chat_template"] = tokenizer.chat.template
    return found


def _words(file: TokenizerFile, vocab: int, *, byte_level: bool) -> Keys:
    words = {token: word for word, token in file.model.vocab.items()}
    kinds = dict.fromkeys(words, _NORMAL)
    if not byte_level:
        bytes_ = {f"<0x{byte:02X}>" for byte in range(256)}
        kinds |= {token: _BYTE for token, word in words.items() if word in bytes_}
    for added in file.added_tokens:
        words[added.id] = added.content
        kinds[added.id] = _CONTROL if added.special else _USER
    if not byte_level and file.model.unk_token is not None:
        kinds[file.model.vocab.get(file.model.unk_token, -1)] = _UNKNOWN
    return {
        "tokens": [words.get(token, f"[PAD{token}]") for token in range(vocab)],
        "token_type": [kinds.get(token, _UNUSED) for token in range(vocab)],
    }


def _byte_level(file: TokenizerFile) -> Keys:
    """How a text is cut whose bytes are written as letters, as GPT-2 does."""
    for part in _flat(file.normalizer):
        if part["type"] != "NFC":  # llama.cpp leaves it out
            raise NotInGguf(f"llama.cpp does not change texts beforehand as {part['type']} does")
    merges = [one if isinstance(one, str) else " ".join(one) for one in file.model.merges]
    return {"model": "gpt2", "pre": _pattern(file), "merges": merges or [_NEVER]}


def _pattern(file: TokenizerFile) -> str:
    """llama.cpp's name of the pattern that cuts a text into words."""
    parts = list(_flat(file.pre_tokenizer))
    if any(part["type"] == "ByteLevel" and part.get("add_prefix_space", True) for part in parts):
        raise NotInGguf("llama.cpp puts no blank before a text, as this tokenizer does")
    if not file.model.merges:
        return "gpt-2"  # whatever a word is, its bytes are the tokens
    match parts:
        case [{"type": "ByteLevel", **rest}] if rest.get("use_regex", True):
            return "gpt-2"
        case [
            {"type": "Digits", "individual_digits": True},
            {"type": "ByteLevel", **rest},
        ] if rest.get("use_regex", True):
            return "smollm"
        case [
            {"type": "Split", "pattern": {"Regex": str(words)}, "behavior": "Isolated", **how},
            {"type": "ByteLevel", "use_regex": False},
        ] if not how.get("invert") and (words, bool(file.model.ignore_merges)) in _PATTERNS:
            return _PATTERNS[words, bool(file.model.ignore_merges)]
    raise NotInGguf(
        "llama.cpp does not have the pattern by which this tokenizer cuts a text into words; it "
        "has those of GPT-2, SmolLM, Llama 3, Qwen 2 and OLMo 2"
    )


def _sentence_piece(file: TokenizerFile, size: int) -> Keys:
    """How a text is cut by a tokenizer of SentencePiece that was made a `tokenizer.json` of.

    There every word has a score, and the two neighbours are joined whose word has the highest one;
    here every merge has a rank. Both are the same if every way to make a word is a merge.
    """
    merges = [tuple(one.split(" ")) if isinstance(one, str) else one for one in file.model.merges]
    scores: dict[str, int] = {}
    for rank, pair in enumerate(merges):
        scores.setdefault("".join(pair), -rank)
    known, vocab = set(merges), file.model.vocab
    for word in scores:
        cuts = ((word[:at], word[at:]) for at in range(1, len(word)))
        if any(a in vocab and b in vocab and (a, b) not in known for a, b in cuts):
            raise NotInGguf("llama.cpp would merge this tokenizer's words in another order")
    least = -len(merges) - 1
    by_token = {token: scores.get(word, least) for word, token in vocab.items()}
    return {
        "model": "llama",
        "pre": "default",
        "scores": [float(by_token.get(token, least)) for token in range(size)],
        "add_space_prefix": _blank_first(file),
    }


def _blank_first(file: TokenizerFile) -> bool:
    """Whether a text gets a blank at its beginning."""
    for part in (*_flat(file.normalizer), *_flat(file.pre_tokenizer)):
        if part["type"] == "Prepend":
            return True
        if part["type"] == "Metaspace":
            return bool(part.get("prepend_scheme", "always") != "never")
    return False


def _ends(file: TokenizerFile, tokenizer: Bpe, vocab: int) -> Keys:
    """The tokens at both ends of a text, and whether they are written there unasked."""
    before, after = _template(file)
    first = before or (tokenizer.token_of(tokenizer.chat.bos) if tokenizer.chat else None)
    last = after or end_token(tokenizer)
    if last is None:
        if file.model.merges:
            raise NotInGguf("llama.cpp needs a token for the end of a text, which is not there")
        last = 0  # the byte that ends a text in C
    first = last if first is None else first
    if not 0 <= first < vocab or not 0 <= last < vocab:
        raise NotInGguf("the tokenizer's ends of a text are no tokens of the model")
    return {
        "bos_token_id": first,
        "eos_token_id": last,
        "add_bos_token": before is not None,
        "add_eos_token": after is not None,
    }


def _template(file: TokenizerFile) -> tuple[int | None, int | None]:
    """The special tokens that `transformers` writes before and after a text."""
    before: list[int] = []
    after: list[int] = []
    for part in _flat(file.post_processor):
        if part["type"] != "TemplateProcessing":
            continue
        try:
            template = msgspec.convert(part, _Template)
            words = [piece.special and piece.special.id for piece in template.single]
            at = words.index(None)  # the text itself
            ids = [template.special_tokens[word].ids if word else [] for word in words]
        except (msgspec.ValidationError, KeyError, ValueError) as error:
            raise NotInGguf(f"the tokenizer's template is malformed: {error}") from error
        before += [token for some in ids[:at] for token in some]
        after += [token for some in ids[at:] for token in some]
    if len(before) > 1 or len(after) > 1:
        raise NotInGguf("llama.cpp writes one special token before a text and one after it at most")
    return next(iter(before), None), next(iter(after), None)


def _flat(part: Any) -> Iterator[dict[str, Any]]:
    """The parts of a pipeline, those of sequences within it one after the other."""
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        return
    if part["type"] != "Sequence":
        yield part
        return
    for name in ("normalizers", "pretokenizers", "processors", "decoders"):
        for inner in part.get(name, ()):
            yield from _flat(inner)
