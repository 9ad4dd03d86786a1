"""Texts out of files: plain text, JSON lines, parquet, gzip and Zstandard.

Every command reads text here, so all of them take and refuse the same files. Sources are cut into
pieces that can be read apart from each other. Where they are cut follows from the files alone, so
the tokens do not depend on how many processes read them. A text is read in fragments of at most
64 KiB that end with a line where they can: nothing has to fit in memory, and short fragments are
tokenized fastest.
"""

import gzip
import io
import json
import zlib
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, BinaryIO, Literal

import msgspec

from model_zoo.data import DataError
from model_zoo.specs.lfs import MAX_POINTER_BYTES, POINTER, is_pointer
from model_zoo.specs.packages import load

Kind = Literal["text", "jsonl", "parquet"]
FRAGMENT_BYTES = 64 * 1024
PIECE_BYTES = 16 << 20
MAX_LINE_BYTES = 1 << 30
_SUFFIXES: dict[str, Kind] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
}
_PACKED = (".gz", ".zst")
_COUNTED_BYTES = 1 << 20
_UNREADABLE = (OSError, EOFError, ValueError, zlib.error)
"""What files raise that are damaged: also those of pyarrow, whose errors are of the third kind."""
_SAMPLES, _SAMPLE_BYTES = 32, 4096
"""Places all over a file that have to look like text as well."""


@dataclass(frozen=True)
class Piece:
    """A part of a file that can be read by itself: bytes, or row groups of parquet."""

    path: str
    kind: Kind
    start: int
    end: int
    last: bool
    """Whether the file ends with it; a plain text then ends, too."""
    size_bytes: int

    @property
    def packed(self) -> bool:
        """Whether the file is compressed."""
        return _packing(self.path) != ""


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


class RowPlace(msgspec.Struct, frozen=True):
    """A row that cannot be used: its file, its first byte there, and what is wrong with it."""

    path: str
    place: int
    problem: str


BadRow = Callable[[RowPlace], None]
"""Is told of a row that cannot be used, and is left out."""


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
        DataError: parquet without such a column, or a damaged file.
        MissingPackage: nothing reads it here.
    """
    path, kind = source.path, _kind(source.path)
    if kind == "parquet":
        groups = _parquet(path, field).metadata.num_row_groups
        for group in range(groups):
            size = source.size_bytes // groups
            yield Piece(path, kind, group, group + 1, group + 1 == groups, size)
        return
    step = source.size_bytes if _packing(path) else PIECE_BYTES
    for start in range(0, source.size_bytes, step):
        end = min(start + step, source.size_bytes)
        yield Piece(path, kind, start, end, end == source.size_bytes, end - start)


def fragments(piece: Piece, field: str, bad: BadRow) -> Iterator[Fragment]:
    """Read a piece of text.

    Args:
        piece: of a text, JSON lines or parquet.
        field: of JSON lines and parquet, that has the text.
        bad: is told of rows that have none.

    Raises:
        DataError: it is malformed or cannot be read.
    """
    try:
        if piece.kind == "parquet":
            yield from _of_texts(_parquet_texts(piece, field))
        elif piece.kind == "jsonl":
            yield from _of_texts(_json_texts(piece, field, bad))
        else:
            yield from _of_plain_text(piece)
    except _UNREADABLE as error:
        raise DataError(f"cannot read {piece.path}: {error}") from error


def rows(piece: Piece, bad: BadRow) -> Iterator[tuple[int, Any]]:
    """Return the rows of a piece of JSON lines, each with the place of its first byte.

    Args:
        piece: of JSON lines.
        bad: is told of lines that are no JSON.

    Raises:
        DataError: it is malformed or cannot be read.
    """
    try:
        for place, line in _lines(piece):
            if not line.strip():
                continue
            try:
                row = _parsed(line)
            except (ValueError, RecursionError) as error:
                bad(RowPlace(piece.path, place, f"is not JSON: {error}"))
            else:
                yield place, row
    except _UNREADABLE as error:
        raise DataError(f"cannot read {piece.path}: {error}") from error


def row_names(found: Sequence[RowPlace]) -> list[str]:
    """Return how people find rows, and what is wrong with each; each file is read once.

    Args:
        found: rows in the order of their files and places.
    """
    names = []
    for path, inside in groupby(found, lambda row: row.path):
        number, read = 1, 0
        with _opened(path) as file:
            for row in inside:
                while read < row.place:
                    data = file.read(min(row.place - read, _COUNTED_BYTES))
                    number, read = number + data.count(b"\n"), read + len(data)
                names.append(f"{path}, line {number}, {row.problem}")
    return names


def as_bytes(found: Iterable[Fragment]) -> bytes:
    """Return fragments as bytes that are tokens themselves: a text ends with a line."""
    return b"".join(
        part.text + (b"\n" if part.ends and not part.text.endswith(b"\n") else b"")
        for part in found
    )


# --- kinds of files ------------------------------------------------------------------------------


def _kind(path: str) -> Kind:
    return _SUFFIXES.get(_suffix(path), "text")


def _suffix(path: str) -> str:
    """Return the suffix of a file when it is unpacked."""
    plain = Path(path.lower())
    while plain.suffix in _PACKED:
        plain = plain.with_suffix("")
    return plain.suffix


def _packing(path: str) -> str:
    """Return the suffix of a compressed file; empty: it is not compressed."""
    suffix = Path(path).suffix.lower()
    return suffix if suffix in _PACKED else ""


def is_json_lines(path: str) -> bool:
    """Whether a file has JSON lines, by its name."""
    return _kind(path) == "jsonl"


def _inside(folder: Path) -> Iterator[Path]:
    for path in folder.rglob("*"):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if not hidden and path.is_file():
            yield path


def _problem(path: Path) -> str:
    """Return why a file has no text, as far as samples tell; empty: it seems to have some."""
    try:
        if not path.exists():
            return "does not exist"
        if not path.is_file():
            return "is neither a file nor a folder"
        if not path.stat().st_size:
            return "is empty"
        with path.open("rb") as file:
            if is_pointer(file.read(MAX_POINTER_BYTES)):
                return POINTER
        if _kind(str(path)) == "parquet":
            return ""
        with _opened(str(path)) as file:
            begin = file.read(FRAGMENT_BYTES)
        if not begin:
            return "is empty"
        return _no_text(begin) or _no_lines(begin, path) or _binary_beyond(path)
    except _UNREADABLE as error:
        return f"cannot be read: {error}"


_BEGINNINGS = {
    b"%PDF-": "is a PDF: make text of it, such as with pdftotext",
    b"PK\x03\x04": "is a zip archive: unpack it, and name the folder",
    b"PAR1": "is parquet: its name has to end with .parquet",
    b"\x1f\x8b": "is packed with gzip: its name has to end with .gz",
    b"\x28\xb5\x2f\xfd": "is packed with Zstandard: its name has to end with .zst",
    b"\xff\xfe": "is UTF-16: make UTF-8 of it, with iconv -f UTF-16 -t UTF-8",
    b"\xfe\xff": "is UTF-16: make UTF-8 of it, with iconv -f UTF-16 -t UTF-8",
}
"""What files are that begin so, and what makes text of them."""
_TAR = b"ustar"
_TAR_PLACE = 257


def _no_text(begin: bytes) -> str:
    """Return what a file is that begins so, where it is no text."""
    for magic, words in _BEGINNINGS.items():
        if begin.startswith(magic):
            return words
    if begin.startswith(_TAR, _TAR_PLACE):
        return "is a tar archive: unpack it, and name the folder"
    if not _is_binary(begin):
        return ""
    if b"\0" in begin:
        return "is binary: it is no text"
    return "is not UTF-8: if it is text, make UTF-8 of it, such as with iconv -f LATIN1 -t UTF-8"


def _no_lines(begin: bytes, path: Path) -> str:
    """Return why a file that has JSON cannot be read line by line."""
    named_json, begin = _suffix(str(path)) == ".json", begin.removeprefix(BOM_UTF8).lstrip()
    if (named_json or is_json_lines(str(path))) and begin.startswith(b"["):
        return "is a JSON array: make JSON lines of it, with jq -c '.[]', in a .jsonl"
    first, _, rest = begin.partition(b"\n")
    if named_json and rest.lstrip().startswith(b"{") and first.rstrip().endswith(b"}"):
        return "has JSON lines: its name has to end with .jsonl"
    return ""


def _binary_beyond(path: Path) -> str:
    """Return where an uncompressed file is binary whose beginning is text."""
    size = path.stat().st_size
    if _packing(str(path)) or size <= FRAGMENT_BYTES:
        return ""
    with path.open("rb") as file:
        for number in range(_SAMPLES):
            place = (size - _SAMPLE_BYTES) * (number + 1) // _SAMPLES
            file.seek(place)
            # Here zero bytes may be stray ones, too.
            if _is_binary(file.read(_SAMPLE_BYTES).replace(b"\0", b"\xff")):
                return f"is binary from byte {place:,} on at the latest: it is no text"
    return ""


def _is_binary(data: bytes) -> bool:
    """Zero bytes, or many that are not UTF-8: a few stray ones are in most large texts."""
    return b"\0" in data or data.decode("utf-8", "replace").count("�") > len(data) // 100 + 1


def _described(path: Path) -> Source:
    status = path.stat()
    return Source(str(path.absolute()), status.st_size, status.st_mtime_ns)


def _opened(path: str) -> BinaryIO:
    """Open a file of text, unpacked.

    Raises:
        MissingPackage: there is nothing that unpacks it.
    """
    packing = _packing(path)
    if packing == ".gz":
        return gzip.open(path, "rb")  # type: ignore[return-value]
    if packing == ".zst":
        return io.BufferedReader(load("pyarrow").input_stream(path, compression="zstd"))
    return open(path, "rb")


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


def _json_texts(piece: Piece, field: str, bad: BadRow) -> Iterator[bytes]:
    for place, record in rows(piece, bad):
        known = record if isinstance(record, dict) else {}
        text = known.get(field)
        if isinstance(text, str):
            yield text.encode()
        elif text is not None or field not in known:  # null is no text, as in parquet
            words = f'has no string field "{field}"; {_instead(known)}'
            bad(RowPlace(piece.path, place, words))


def _instead(record: dict[str, Any]) -> str:
    """Return what reads a row that has no text."""
    if record.keys() & {"messages", "conversations"} or {"prompt", "completion"} <= record.keys():
        return "it has a conversation, which volunteer data build --chat reads"
    return "name it with --field of volunteer data build"


def _parsed(line: bytes) -> Any:
    """Return the value of a line, with all that is written as JSON though it is none: a byte order
    mark, NaN, and halves of characters, which are left out.

    Raises:
        ValueError: it is no JSON.
        RecursionError: it is nested too deeply.
    """
    try:
        return msgspec.json.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return _whole(json.loads(line))


def _whole(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "ignore").decode()
    if isinstance(value, list):
        return [_whole(one) for one in value]
    if isinstance(value, dict):
        return {_whole(name): _whole(one) for name, one in value.items()}
    return value


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
        DataError: it has none, or is damaged.
        MissingPackage: pyarrow is missing.
    """
    parquet = load("pyarrow.parquet")
    try:
        file = parquet.ParquetFile(path)
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read {path}: {error}") from error
    columns = {column.name: column.type for column in file.schema_arrow}
    if not _is_text(columns.get(field)):
        known = ", ".join(columns) or "none"
        raise DataError(
            f'{path} has no text column "{field}"; its columns are {known}: name one with --field'
        )
    return file


def _is_text(kind: Any) -> bool:
    """Whether a column of a type has texts: itself, or as words of a dictionary."""
    words = str(getattr(kind, "value_type", kind))
    return words in ("string", "large_string", "string_view")


def _parquet_texts(piece: Piece, field: str) -> Iterator[bytes]:
    file = _parquet(piece.path, field)
    groups = list(range(piece.start, piece.end))
    for batch in file.iter_batches(batch_size=256, row_groups=groups, columns=[field]):
        for text in batch.column(0).to_pylist():
            yield (text or "").encode("utf-8", "ignore")
