"""Makes a data folder of text files.

The sources are cut into pieces, which are tokenized, by the library on all cores, and appended to
the shards in their order. What was appended is on disk and noted after about every 16 MiB of them,
so a build that was interrupted goes on where it was. The result depends on the files and the
tokenizer alone.
"""

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np

from model_zoo.data import DataError
from model_zoo.datasets import sources
from model_zoo.datasets.assembly import (
    COPY_BYTES,
    NOTE,
    Assembly,
    Note,
    Tell,
    begin,
    building,
    read_note,
    write,
)
from model_zoo.datasets.conversations import Conversation, NoConversation, Reader
from model_zoo.datasets.folder import (
    MAX_ROW_CHARS,
    Folder,
    Index,
    Tally,
    kept_digests,
    name_of,
    open_folder,
)
from model_zoo.datasets.sources import BadRow, Fragment, Piece, RowPlace, Source
from model_zoo.specs.data import Answers, DataSpec
from model_zoo.specs.merkle import root
from model_zoo.specs.shards import INDEX, TOKENIZER
from model_zoo.specs.tokens import NOT_LEARNED, token_dtype
from model_zoo.tokenizers.bpe import BadTokenizer, Bpe, library_version, train
from model_zoo.tokenizers.chat import BadTemplate

Made = TypeVar("Made")
TRAINED_ON_BYTES = 64 << 20
"""Text that a new tokenizer is trained on, from all over the sources."""
_TEXT_BYTES = 4 << 20
"""Tokenized at once, on all cores."""
_TALK_BYTES = 8 << 20
"""Of conversations, which are packed together: 64 windows of the longest context, at a byte a
token."""


def build(
    paths: Sequence[Path],
    out: Path,
    *,
    tokenizer: Bpe | int | None = None,
    field: str = "text",
    context: int | None = None,
    tell: Tell = lambda *_: None,
    left_out: Callable[[list[str]], None] = lambda _: None,
) -> Folder:
    """Make a data folder, or complete one that was interrupted or failed.

    Rows that cannot be used are left out, counted and listed.

    Args:
        paths: files and folders of text.
        out: the folder.
        tokenizer: an int trains one of so many tokens on the text; None: tokens are bytes.
        field: of JSON lines and parquet, that has the text.
        context: of conversations, tokens of a window; None: the sources have texts.
        tell: called with the progress.
        left_out: called with words about files of folders that have no text.

    Raises:
        DataError: sources, tokenizer or folder cannot be used; what was built stays.
    """
    files, skipped = sources.find_files(paths)
    left_out(skipped)
    try:
        if context is not None:
            _check_conversations(files, tokenizer, context)
        plan = _plan_words(files, field, tokenizer, context)
    except (BadTokenizer, BadTemplate) as error:
        raise DataError(str(error)) from error
    with building(out):
        if begin(out, plan):
            return open_folder(out)
        pieces = [piece for source in files for piece in sources.pieces(source, field)]
        chosen = _chosen(out, pieces, field, tokenizer)
        make: _Make = partial(_tokenized, field, chosen)
        if context is not None:
            make = partial(_talked, Reader(chosen, context))
        note = _assemble(out, pieces, make, tell, masked=context is not None)
        answers = Answers(context, max(1, note.tally.learned)) if context else None
        return _finish(out, paths, chosen, note, answers)


# --- the plan ------------------------------------------------------------------------------------


def _check_conversations(
    files: Sequence[Source], tokenizer: Bpe | int | None, context: int
) -> None:
    """Check what can be said before a row is read.

    Raises:
        BadTemplate: the tokenizer's template cannot be used.
        DataError: a file cannot have conversations, or the tokenizer cannot write them.
    """
    for source in files:
        if not sources.is_json_lines(source.path):
            raise DataError(f"{source.path} cannot have conversations: they are JSON lines, .jsonl")
    if isinstance(tokenizer, int):
        raise DataError(
            "a tokenizer is trained on texts, not on conversations: take bytes, a tokenizer.json "
            "or a model's folder"
        )
    Reader(tokenizer, context)


def _plan_words(
    files: Sequence[Source],
    field: str,
    tokenizer: Bpe | int | None,
    context: int | None,
) -> str:
    """Return what decides the result, as text."""
    chosen = tokenizer.digest if isinstance(tokenizer, Bpe) else tokenizer
    chat = tokenizer.chat if isinstance(tokenizer, Bpe) else None
    library = library_version() if tokenizer is not None else ""  # another may cut text differently
    found = [asdict(file) for file in files]
    words = {"files": found, "field": field, "tokenizer": chosen, "library": library}
    if chat is not None or context is not None:
        words |= {"chat": msgspec.to_builtins(chat), "context": context}
    return json.dumps(words)


def _chosen(
    out: Path, pieces: Sequence[Piece], field: str, tokenizer: Bpe | int | None
) -> Bpe | None:
    """Return the tokenizer, trained now if it has to be, and keep it in the folder."""
    path = out / TOKENIZER
    try:
        if isinstance(tokenizer, int):
            if path.exists():
                return Bpe(path.read_bytes())
            texts = _training_texts(pieces, field)
            vocab = tokenizer
            tokenizer = interruptible(lambda: train(texts, vocab))
    except BadTokenizer as error:
        raise DataError(f"no tokenizer can be trained: {error}") from error
    if tokenizer is not None and not path.exists():
        write(path, tokenizer.data)
    return tokenizer


def interruptible(call: Callable[[], Made]) -> Made:
    """Call what computes outside of Python, where Ctrl-C does not reach it: in another thread."""
    made: Future[Made] = Future()

    def run() -> None:
        try:
            made.set_result(call())
        except BaseException as error:
            made.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return made.result()


def _training_texts(pieces: Sequence[Piece], field: str) -> Iterator[str]:
    """The beginnings of pieces all over the sources, about `TRAINED_ON_BYTES` in all."""
    share = TRAINED_ON_BYTES / max(1, sum(piece.size_bytes for piece in pieces))
    due = 0.0
    for piece in pieces:
        due += piece.size_bytes * share
        if due < min(piece.size_bytes, sources.FRAGMENT_BYTES):
            continue
        for fragment in sources.fragments(piece, field, lambda _: None):
            if due <= 0:
                break
            due -= len(fragment.text)
            yield fragment.text.decode("utf-8", "replace")


# --- a piece -------------------------------------------------------------------------------------


_Make = Callable[[Piece, BadRow], Iterator[tuple[bytes, Tally]]]
"""Makes tokens of a piece; is told of rows that cannot be used."""


def _tokenized(
    field: str, tokenizer: Bpe | None, piece: Piece, bad: BadRow
) -> Iterator[tuple[bytes, Tally]]:
    for batch in _batches(sources.fragments(piece, field, bad)):
        texts = [fragment.text.decode("utf-8", "replace") for fragment in batch]
        size = sum(len(fragment.text) for fragment in batch)
        replaced = sum(
            text.count("�") - fragment.text.count("�".encode())
            for text, fragment in zip(texts, batch, strict=True)
        )
        ends = sum(fragment.ends for fragment in batch)
        yield _encoded(texts, batch, tokenizer), Tally(ends, size, replaced)


def _talked(reader: Reader, piece: Piece, bad: BadRow) -> Iterator[tuple[bytes, Tally]]:
    """Make windows of conversations."""
    batch: list[Conversation] = []
    size = 0
    for place, row in sources.rows(piece, bad):
        try:
            batch.append(reader.conversation(row))
        except NoConversation as error:
            bad(RowPlace(piece.path, place, str(error)))
            continue
        size += len(batch[-1].text)
        if size >= _TALK_BYTES:
            yield from _windows(reader, batch)
            batch, size = [], 0
    yield from _windows(reader, batch)


def _windows(reader: Reader, batch: list[Conversation]) -> Iterator[tuple[bytes, Tally]]:
    made, tally = [], Tally()
    for one, encoded in zip(batch, reader.encoded(batch), strict=True):
        if not encoded.learned:
            tally = tally.plus(Tally(left_out=1))
            continue
        size, cut = len(one.text.encode()), int(encoded.cut)
        tally = tally.plus(Tally(1, size, learned=encoded.learned, cut=cut))
        made.append(encoded)
    windows = reader.windows(made)
    used = sum(len(encoded.tokens) for encoded in made)
    padding = sum(len(window) for window in windows) - used
    yield b"".join(window.tobytes() for window in windows), tally.plus(Tally(padding=padding))


def _batches(found: Iterator[Fragment]) -> Iterator[list[Fragment]]:
    batch: list[Fragment] = []
    size = 0
    for fragment in found:
        batch.append(fragment)
        size += len(fragment.text)
        if size >= _TEXT_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _encoded(texts: Sequence[str], batch: Sequence[Fragment], tokenizer: Bpe | None) -> bytes:
    """Return the tokens of fragments; where a text ends, the token that says so follows."""
    if tokenizer is None:
        plain = sources.as_bytes(batch)
        return np.frombuffer(plain, dtype=np.uint8).astype(token_dtype(256)).tobytes()
    end = tokenizer.end_of_text
    closing = b"" if end is None else np.array(end, token_dtype(tokenizer.vocab)).tobytes()
    found = zip(batch, tokenizer.encode_all(texts), strict=True)
    return b"".join(t.tobytes() + (closing if f.ends else b"") for f, t in found)


# --- putting them together -----------------------------------------------------------------------


def _assemble(
    out: Path,
    pieces: Sequence[Piece],
    make: _Make,
    tell: Tell,
    *,
    masked: bool,
) -> Note:
    """Make and append all pieces that are not yet there; return the last note.

    A piece counts once it is noted, when it is safely on disk.
    """
    note = read_note(out)
    shards, tally, tokens = Assembly(out, note.size_bytes), note.tally, bytearray()
    total = sum(piece.size_bytes for piece in pieces)
    done = noted = sum(piece.size_bytes for piece in pieces[: note.pieces])
    tell(done, total)

    def skip(row: RowPlace) -> None:
        nonlocal tally
        tally = tally.plus(Tally(skipped=1, listed=(row,)))

    for number, piece in enumerate(pieces[note.pieces :], note.pieces + 1):
        for data, counted in make(piece, skip):
            tally = tally.plus(counted)
            tokens += data
            if len(tokens) >= COPY_BYTES:
                shards.append(bytes(tokens))
                tokens.clear()
        done += piece.size_bytes
        if done - noted >= sources.PIECE_BYTES or number == len(pieces):
            shards.append(bytes(tokens))
            tokens.clear()
            note, noted = Note(number, shards.size_bytes, tally), done
            write(out / NOTE, msgspec.json.encode(note))
            tell(done, total)
    if masked and note.size_bytes:
        # what the last window's last token is followed by; an interrupted build cuts it off again
        shards.append(np.array(NOT_LEARNED, token_dtype(256, masked=True)).tobytes())
    shards.end()
    return msgspec.structs.replace(note, size_bytes=shards.size_bytes)


def _finish(
    out: Path, paths: Sequence[Path], tokenizer: Bpe | None, note: Note, answers: Answers | None
) -> Folder:
    """Write the index."""
    if not note.size_bytes:
        if note.tally.left_out:
            within = answers.context if answers else 0
            raise DataError(f"no conversation has an answer within {within} tokens")
        raise DataError(" and ".join(["the sources have no text at all", *_skipped(note.tally)]))
    digest, made_by = root(kept_digests(out)).hex(), tokenizer.spec() if tokenizer else None
    spec = DataSpec(name_of(paths[0]), note.size_bytes, digest, made_by, answers)
    tally = msgspec.structs.replace(note.tally, listed=())
    write(out / INDEX, msgspec.json.encode(Index(spec, tally, tuple(_names(note.tally)))))
    return open_folder(out)


def _names(tally: Tally) -> list[str]:
    return [name[:MAX_ROW_CHARS] for name in sources.row_names(tally.listed)]


def _skipped(tally: Tally) -> list[str]:
    names = _names(tally)[:1]
    return [f"{tally.skipped:,} rows that cannot be used, such as {name}" for name in names]
