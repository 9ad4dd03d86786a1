"""Byte-pair encoding from a `tokenizer.json`: texts come back, and hostile files are refused."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_zoo.data import DataError
from model_zoo.datasets.choice import parse_tokenizer
from model_zoo.huggingface.tokenizer import write_tokenizer
from model_zoo.specs.state_hash import file_hash
from model_zoo.specs.tokens import MAX_TOKENIZER_BYTES, ChatFormat
from model_zoo.tokenizers.bpe import (
    END_OF_TEXT,
    BadTokenizer,
    Bpe,
    byte_tokenizer,
    end_token,
    train,
)

tokenizers = pytest.importorskip("tokenizers")
TEXT = "the quick brown fox, über «40» lazy dogs\n\tand 日本\r\n" * 9


@cache
def _trained() -> Bpe:
    return train([TEXT], 300)


def _file() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(_trained().data)
    return found


def _decoded(tokenizer: Bpe, tokens: Any) -> bytes:
    return b"".join(tokenizer.decode(int(token)) for token in tokens)


def test_a_text_comes_back_in_fewer_tokens() -> None:
    tokenizer = _trained()
    tokens = tokenizer.encode(np.frombuffer(TEXT.encode(), np.uint8))
    assert 280 < tokenizer.vocab <= 300
    assert len(tokens) < len(TEXT.encode()) / 1.5
    assert _decoded(tokenizer, tokens) == TEXT.encode()
    assert int(tokenizer.byte_counts[tokens].sum()) == len(TEXT.encode())


@pytest.mark.parametrize("text", ["\0\x01\x7f", "é", "🙂🙂", " ", "\n\n\n"])
def test_every_text_has_tokens(text: str) -> None:
    tokens = _trained().encode(np.frombuffer(text.encode(), np.uint8))
    assert _decoded(_trained(), tokens) == text.encode()


def test_the_words_for_the_end_of_a_text_are_plain_text_in_it() -> None:
    tokenizer = _trained()
    tokens = tokenizer.encode(np.frombuffer(END_OF_TEXT.encode(), np.uint8))
    assert tokenizer.end_of_text == 0
    assert 0 not in tokens
    assert tokenizer.decode(0) == b""


def test_bytes_that_fall_back_are_read() -> None:
    """As in the files of Llama 2: a mark for spaces, and words for bytes."""
    words = ["<unk>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "▁a"]
    model = {"type": "BPE", "vocab": {w: n for n, w in enumerate(words)}, "merges": ["▁ a"]}
    file = {
        "model": model,
        "added_tokens": [{"id": 1, "content": "</s>", "special": True}],
        "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}]},
    }
    tokenizer = Bpe(json.dumps(file).encode())
    assert [tokenizer.decode(n) for n in (1, 2 + 200, 258, 260)] == [b"", b"\xc8", b" ", b" a"]
    assert tokenizer.end_of_text == 1


def _changed(**changes: Any) -> bytes:
    return json.dumps(_file() | changes).encode()


def _model(**changes: Any) -> bytes:
    return _changed(model=_file()["model"] | changes)


def _nested(depth: int) -> Any:
    return {"type": "Sequence", "decoders": [_nested(depth - 1)]} if depth else None


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "no tokenizer.json"),
        (b"[" * 100_000, "no tokenizer.json"),
        (b"\xff\xfe", "no tokenizer.json"),
        (
            b'{"model": {"type": "Unigram", "vocab": [["a", 0.5]]}}',
            "by Unigram, and only",
        ),
        (
            b'{"model": {"type": "WordPiece", "vocab": {"a": 0}}}',
            "by WordPiece, and only",
        ),
        (b"version https://git-lfs.github.com/spec/v1\nsize 9\n", "a pointer of Git LFS"),
        (_model(merges=["never seen"]), "merge of 'never' and 'seen' needs words that are not"),
        (_model(merges=[["a", "\u0100"]]), "merge of 'a' and 'Ā' needs words that are not"),
        (_model(vocab={"a": 0, "b": 2**20}), "not below"),
        (_model(vocab={"a": 5, "b": 5}), "two words"),
        (_model(vocab={"a": 0, "b" * 5000: 1}), "5000 characters"),
        (_model(vocab={}), "no vocabulary"),
        (_model(vocab={"a": "0"}), "no tokenizer.json"),
        (_changed(added_tokens=[{"id": 9, "content": ""}]), "0 characters"),
        (_changed(pre_tokenizer={"type": "Evil"}), "Evil is not supported"),
        (_changed(normalizer={"type": "Replace", "pattern": "a" * 5000}), "too long"),
        (_changed(decoder=_nested(40)), "nested too deeply"),
        (_changed(pre_tokenizer=None, decoder=None), "neither byte-level"),
    ],
)
def test_hostile_files_are_refused(data: bytes, words: str) -> None:
    with pytest.raises(BadTokenizer, match=words):
        Bpe(data)


def test_a_file_that_is_too_large_is_not_parsed() -> None:
    with pytest.raises(BadTokenizer, match="bytes; "):
        Bpe(b" " * (MAX_TOKENIZER_BYTES + 1))


PATTERN = [{"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated", "invert": False}]


def test_what_the_library_refuses_is_an_error_with_words(tmp_path: Path) -> None:
    data = _changed(pre_tokenizer={"type": "Sequence", "pretokenizers": PATTERN})
    with pytest.raises(BadTokenizer, match="refuses it"):
        Bpe(data).encode(np.frombuffer(b"a", np.uint8))
    path = tmp_path / "tokenizer.json"
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"tokenizer\.json: .* refuses it"):
        parse_tokenizer(str(path))


def test_a_byte_order_mark_before_a_tokenizer_changes_nothing(tmp_path: Path) -> None:
    for name, text in (
        ("tokenizer.json", _trained().data.decode()),
        ("tokenizer_config.json", '{"eos_token": "</s>"}'),
        ("chat_template.jinja", "{{ messages }}"),
    ):
        (tmp_path / name).write_text(text, encoding="utf-8-sig")
    found = parse_tokenizer(str(tmp_path))
    assert found.data == _trained().data
    assert found.chat == ChatFormat("{{ messages }}", eos="</s>")


def test_words_that_are_no_tokens_are_not_exported_as_such(tmp_path: Path) -> None:
    """Other programs would number them beyond the model's tokens."""
    chat = ChatFormat("{{ messages }}", bos="<s>", eos="<|gone|>")
    tokenizer = Bpe(_trained().data, chat)
    write_tokenizer(tokenizer, tmp_path, 16)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert config["eos_token"] == END_OF_TEXT
    assert "bos_token" not in config
    assert end_token(tokenizer) == tokenizer.end_of_text == 0


ADDED = [
    {"<|endoftext|>": 310, "<|im_end|>": 305},
    {"<|endoftext|>": 299, "<|im_end|>": 1000},
    {"<|im_end|>": 300, "<|endoftext|>": 299},
]


@pytest.mark.parametrize("ids", ADDED)
def test_the_numbers_of_a_file_hold_whatever_gaps_they_leave(
    ids: dict[str, int], tmp_path: Path
) -> None:
    """The library alone would number these words from 256 on."""
    how = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added = [{"id": n, "content": word, "special": True} | how for word, n in ids.items()]
    file = json.loads(byte_tokenizer().data) | {"added_tokens": added}
    chat = ChatFormat("{{ messages }}", eos="<|im_end|>")
    tokenizer = Bpe(json.dumps(file).encode(), chat)
    (tokens, _), *_ = tokenizer.encode_marked(["a<|im_end|><|endoftext|>"])
    assert tokens.tolist() == [97, ids["<|im_end|>"], ids["<|endoftext|>"]]
    (plain,) = tokenizer.encode_all(["<|im_end|>"])
    assert bytes(plain.tolist()) == b"<|im_end|>"
    write_tokenizer(tokenizer, tmp_path, 16)
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert {word: theirs.token_to_id(word) for word in ids} == ids
    assert end_token(tokenizer) == ids["<|im_end|>"]
    assert tokenizer.digest == file_hash(tokenizer.data)


@pytest.mark.parametrize("vocab", [0, 256, 2**20 + 1])
def test_vocabularies_out_of_range_are_refused(vocab: int) -> None:
    with pytest.raises(BadTokenizer, match="257 to"):
        train([TEXT], vocab)


def test_a_tokenizer_is_named_in_four_ways(tmp_path: Any) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(_trained().data)
    assert parse_tokenizer("bytes") is None
    assert parse_tokenizer("train:512") == 512
    for name in (path, tmp_path):
        found = parse_tokenizer(str(name))
        assert found.digest == _trained().digest


@pytest.mark.parametrize("name", ["train:", "train:-3", "no/such/file"])
def test_other_names_are_refused_with_words(name: str) -> None:
    with pytest.raises(DataError, match="train:16384"):
        parse_tokenizer(name)
