"""Texts out of files: plain text, JSON lines, parquet, gzip, Zstandard, and tokens of others.

Sources are cut into pieces that can be read apart from each other. Where they are cut follows from
the files alone, so the tokens do not depend on how many processes read them. A text is read in
fragments of at most 64 KiB that end with a line where they can: nothing has to fit in memory, and
short fragments are tokenized fastest.
"""

from __future__ import annotations

import gzip
import io
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, Literal

import msgspec

from model_zoo.data import DataError

Kind = Literal["text", "jsonl", "parquet", "tokens"]
FRAGMENT_BYTES = 64 * 1024
PIECE_BYTES = 16 << 20
MAX_LINE_BYTES = 1 << 30
_SUFFIXES: dict[str, Kind] = {".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
_PACKED = (".gz", ".zst")
_COUNTED_BYTES = 1 << 20
_PACKED_BYTES = 4096
"""Compressed bytes taken at a time: unpacked they may be thousands of times as many."""
_LLMC_HEADER_BYTES = 1024
_LLMC = {20240520: 2, 20240801: 4}
"""Bytes of a token by the magic number of an llm.c file; nanoGPT's files have no header."""


@dataclass(frozen=True)
class Piece:
    """A part of a file that can be read by itself: bytes, or row groups of parquet."""

    path: str
    kind: Kind
    start: int
    end: int
    last: bool
    """Whether the file ends with it; a plain text then ends, too."""
    width: int = 0
    """Bytes of a token, where the file has tokens."""

    @property
    def packed(self) -> bool:
        """Whether the file is compressed."""
        return self.path.endswith(_PACKED)


@dataclass(frozen=True)
class Fragment:
    """A part of a text as UTF-8; ``ends``: the text's last."""

    text: bytes
    ends: bool


@dataclass(frozen=True)
class Source:
    """A file to be read: its size and time of change tell whether it is still the same."""

    path: str
    size_bytes: int
    changed_ns: int


def find_files(sources: Iterable[Path]) -> tuple[list[Source], list[str]]:
    """Return the files of sources in a fixed order, and words about those left out of folders.

    Files are taken as named; folders with all below them, by name, without hidden, empty and
    binary files.

    Raises:
        DataError: a source is missing, empty or binary, or a folder has no text.
    """
    found: list[Source] = []
    left_out: list[str] = []
    for source in sources:
        if not source.is_dir():
            if problem := _problem(source):
                raise DataError(f"{source} {problem}")
            found.append(_described(source))
            continue
        before = len(found)
        for path in sorted(_inside(source)):
            if problem := _problem(path):
                left_out.append(f"{path} {problem}")
            else:
                found.append(_described(path))
        if len(found) == before:
            raise DataError(f"{source} has no file with text")
    return found, left_out


def pieces(source: Source, field: str) -> Iterator[Piece]:
    """Cut a file.

    Args:
        source: the file.
        field: of JSON lines and parquet, that has the text.

    Raises:
        DataError: parquet without such a column, without pyarrow, or a damaged file.
    """
    path, kind = source.path, _kind(source.path)
    if kind == "parquet":
        groups = _parquet(path, field).metadata.num_row_groups
        for group in range(groups):
            yield Piece(path, kind, group, group + 1, group + 1 == groups)
        return
    if path.endswith(_PACKED):
        yield Piece(path, kind, 0, source.size_bytes, last=True)
        return
    begin, width = _token_layout(path) if kind == "tokens" else (0, 0)
    if width and (source.size_bytes - begin) % width:
        raise DataError(f"{path} ends within a token of {width} bytes")
    for start in range(begin, source.size_bytes, PIECE_BYTES):
        end = min(start + PIECE_BYTES, source.size_bytes)
        yield Piece(path, kind, start, end, end == source.size_bytes, width)


def fragments(piece: Piece, field: str) -> Iterator[Fragment]:
    """Read a piece of text.

    Raises:
        DataError: it is malformed or cannot be read.
    """
    try:
        if piece.kind == "parquet":
            yield from _of_texts(_parquet_texts(piece, field))
        elif piece.kind == "jsonl":
            yield from _of_texts(_json_texts(piece, field))
        else:
            yield from _of_plain_text(piece)
    except (OSError, EOFError) as error:
        raise DataError(f"cannot read {piece.path}: {error}") from error


def rows(piece: Piece) -> Iterator[tuple[int, Any]]:
    """Return the rows of a piece of JSON lines, each with the place of its first byte.

    Raises:
        DataError: it is malformed or cannot be read.
    """
    try:
        for place, line in _lines(piece):
            if line.strip():
                yield place, _row(piece.path, place, line)
    except (OSError, EOFError) as error:
        raise DataError(f"cannot read {piece.path}: {error}") from error


def row_name(path: str, place: int) -> str:
    """Return how people find the line of a file that begins at a byte of it."""
    number, left = 1, place
    with _opened(path) as file:
        while left and (data := file.read(min(left, _COUNTED_BYTES))):
            number += data.count(b"\n")
            left -= len(data)
    return f"{path}, line {number},"


def raw_tokens(piece: Piece) -> bytes:
    """Return the tokens of a piece of tokens, little-endian, of the piece's width."""
    with open(piece.path, "rb") as file:
        file.seek(piece.start)
        return file.read(piece.end - piece.start)


# --- kinds of files ------------------------------------------------------------------------------


def _kind(path: str) -> Kind:
    plain = Path(path)
    while plain.suffix in _PACKED:
        plain = plain.with_suffix("")
    if plain.suffix == ".bin":
        return "tokens"
    return _SUFFIXES.get(plain.suffix, "text")


def is_json_lines(path: str) -> bool:
    """Whether a file has JSON lines, by its name."""
    return _kind(path) == "jsonl"


def _inside(folder: Path) -> Iterator[Path]:
    for path in folder.rglob("*"):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if not hidden and path.is_file():
            yield path


def _problem(path: Path) -> str:
    """Return why a file has no text, from its beginning; empty: it seems to have some."""
    try:
        if not path.exists():
            return "does not exist"
        if not path.is_file():
            return "is neither a file nor a folder"
        if not path.stat().st_size:
            return "is empty"
        if _kind(str(path)) in ("tokens", "parquet"):
            return ""
        with _opened(str(path)) as file:
            begin = file.read(FRAGMENT_BYTES)
    except (OSError, EOFError) as error:
        return f"cannot be read: {error}"
    if not begin:
        return "is empty"
    return "is binary: it is no text" if _is_binary(begin) else ""


def _is_binary(begin: bytes) -> bool:
    """Zero bytes, or many that are not UTF-8: a few stray ones are in most large texts."""
    return b"\0" in begin or begin.decode("utf-8", "replace").count("�") > len(begin) // 100 + 1


def _described(path: Path) -> Source:
    status = path.stat()
    return Source(str(path.absolute()), status.st_size, status.st_mtime_ns)


def _opened(path: str) -> BinaryIO:
    """Open a file of text, unpacked.

    Raises:
        DataError: there is nothing that unpacks it.
    """
    if path.endswith(".gz"):
        return gzip.open(path, "rb")  # type: ignore[return-value]
    if path.endswith(".zst"):
        library = _library("zstandard", path)
        return io.BufferedReader(_Zstandard(open(path, "rb"), library))
    return open(path, "rb")


class _Zstandard(io.RawIOBase):
    """Frames of Zstandard as a stream; unlike the library's own, it says when one is cut off."""

    def __init__(self, file: BinaryIO, library: Any) -> None:
        self._file, self._library = file, library
        self._frame: Any = None
        self._packed = self._ready = b""

    def readable(self) -> bool:
        """See `io.RawIOBase`."""
        return True

    def readinto(self, buffer: Any) -> int:
        """See `io.RawIOBase`; raises ``EOFError`` where the file ends within a frame."""
        while not self._ready and self._unpack():
            pass
        size = min(len(buffer), len(self._ready))
        buffer[:size], self._ready = self._ready[:size], self._ready[size:]
        return size

    def close(self) -> None:
        """See `io.RawIOBase`."""
        self._file.close()
        super().close()

    def _unpack(self) -> bool:
        """Unpack a little more; False at the end."""
        packed = self._packed or self._file.read(_PACKED_BYTES)
        self._packed = b""
        if not packed:
            if self._frame is not None:
                raise EOFError("it ends within its data")
            return False
        if self._frame is None:
            self._frame = self._library.ZstdDecompressor().decompressobj()
        try:
            self._ready = self._frame.decompress(packed)
        except self._library.ZstdError as error:
            raise OSError(f"it is damaged: {error}") from error
        if self._frame.eof:
            self._packed, self._frame = self._frame.unused_data, None
        return True


def _library(name: str, path: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise DataError(f"{path} needs {name}: pip install {name}") from error


# --- text ----------------------------------------------------------------------------------------


def _of_texts(texts: Iterable[bytes]) -> Iterator[Fragment]:
    for text in texts:
        if text:
            yield from _cut(io.BytesIO(text), ends=True)


def _of_plain_text(piece: Piece) -> Iterator[Fragment]:
    with _opened(piece.path) as file:
        if piece.packed:
            yield from _cut(file, ends=True)
            return
        begin = _line_start(file, piece.start)
        size = (piece.end if piece.last else _line_start(file, piece.end)) - begin
        file.seek(begin)
        yield from _cut(file, ends=piece.last, size=size)


def _line_start(file: BinaryIO, place: int) -> int:
    """Return where a piece begins that should begin at a place: after the first line end there, or
    where no character is cut."""
    if not place:
        return 0
    file.seek(place)
    data = file.read(FRAGMENT_BYTES)
    return place + ((data.find(b"\n") + 1) or _whole_characters(data, 0))


def _whole_characters(data: bytes, at: int) -> int:
    """Return the first place from ``at`` on that is not within a character."""
    while at < len(data) and data[at] & 0xC0 == 0x80:
        at += 1
    return at


def _cut(file: BinaryIO, *, ends: bool, size: int | None = None) -> Iterator[Fragment]:
    """Cut a stream, or its next ``size`` bytes, into fragments; the last one may end the text."""
    left, rest = size, b""
    while True:
        wanted = FRAGMENT_BYTES + 4 - len(rest)
        data = file.read(wanted if left is None else min(wanted, left))
        left = None if left is None else left - len(data)
        rest += data
        if len(rest) <= FRAGMENT_BYTES:
            if len(data) == 0 or left == 0:
                break
            continue
        line = rest.rfind(b"\n", 0, FRAGMENT_BYTES) + 1
        at = line or _whole_characters(rest, FRAGMENT_BYTES)
        yield Fragment(rest[:at], False)
        rest = rest[at:]
    if rest or ends:
        yield Fragment(rest, ends)


# --- JSON lines ----------------------------------------------------------------------------------


def _json_texts(piece: Piece, field: str) -> Iterator[bytes]:
    for place, record in rows(piece):
        text = record.get(field) if isinstance(record, dict) else None
        if not isinstance(text, str):
            where = row_name(piece.path, place)
            raise DataError(f'{where} has no string field "{field}"; name it with --field')
        yield text.encode("utf-8", "ignore")


def _row(path: str, place: int, line: bytes) -> Any:
    try:
        return msgspec.json.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DataError(f"{row_name(path, place)} is not JSON: {error}") from error


def _lines(piece: Piece) -> Iterator[tuple[int, bytes]]:
    """The lines that begin within the piece, each with the place of its first byte."""
    with _opened(piece.path) as file:
        place = piece.start
        if place:
            file.seek(place - 1)
            place += len(file.readline()) - 1
        while (piece.packed or place < piece.end) and (line := file.readline(MAX_LINE_BYTES)):
            if len(line) == MAX_LINE_BYTES:
                raise DataError(f"{piece.path} has a line of more than {MAX_LINE_BYTES} bytes")
            yield place, line
            place += len(line)


# --- parquet -------------------------------------------------------------------------------------


def _parquet(path: str, field: str) -> Any:
    """Open a parquet file that has a column of texts.

    Raises:
        DataError: it has none, is damaged, or pyarrow is missing.
    """
    parquet = _library("pyarrow.parquet", path)
    try:
        file = parquet.ParquetFile(path)
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read {path}: {error}") from error
    columns = {column.name: str(column.type) for column in file.schema_arrow}
    if columns.get(field) not in ("string", "large_string"):
        known = ", ".join(columns) or "none"
        raise DataError(
            f'{path} has no text column "{field}"; its columns are {known}: name one with --field'
        )
    return file


def _parquet_texts(piece: Piece, field: str) -> Iterator[bytes]:
    file = _parquet(piece.path, field)
    groups = list(range(piece.start, piece.end))
    for batch in file.iter_batches(batch_size=256, row_groups=groups, columns=[field]):
        for text in batch.column(0).to_pylist():
            yield (text or "").encode("utf-8", "ignore")


# --- tokens --------------------------------------------------------------------------------------


def _token_layout(path: str) -> tuple[int, int]:
    """Return where the tokens of a file begin, and the bytes of each.

    Raises:
        DataError: it is shorter than its header.
    """
    with open(path, "rb") as file:
        head = file.read(_LLMC_HEADER_BYTES)
    magic = struct.unpack("<i", head[:4])[0] if len(head) >= 4 else 0
    if magic not in _LLMC:
        return 0, 2
    if len(head) < _LLMC_HEADER_BYTES:
        raise DataError(f"{path} ends within its header: it is damaged")
    return _LLMC_HEADER_BYTES, _LLMC[magic]
