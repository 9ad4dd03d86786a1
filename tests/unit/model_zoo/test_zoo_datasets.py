"""Data folders: the same tokens however they are built, and every bad input has its words."""

import errno
import gzip
import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_zoo.data import DataError, built_in_text
from model_zoo.datasets import assembly, sources
from model_zoo.datasets import build as builds
from model_zoo.datasets.build import build, interruptible
from model_zoo.datasets.corpus import Corpus
from model_zoo.datasets.folder import Folder, is_data_folder, open_folder, proven_leaves
from model_zoo.specs.merkle import LEAF_BYTES
from model_zoo.specs.packages import MissingPackage
from model_zoo.specs.tokens import token_bytes, token_dtype
from model_zoo.specs.windows import leaves_of
from tests.support.texts import corpus_of

pytest.importorskip("tokenizers")
LINE = "{n}: the quick brown fox, über «40» lazy dogs\n"
TEXT = "".join(LINE.format(n=n) for n in range(4000))


def zipped(data: bytes) -> bytes:
    """Return the same bytes whenever it is called: they name cases, alike in every process."""
    return gzip.compress(data, mtime=0)


@pytest.fixture
def book(tmp_path: Path) -> Path:
    path = tmp_path / "book.txt"
    path.write_text(TEXT)
    return path


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "PIECE_BYTES", 20_000)


def _text(folder: Folder) -> str:
    width = "<u2" if folder.index.spec.vocab <= 1 << 16 else "<u4"
    tokens = np.concatenate([np.frombuffer(shard, width) for shard in folder.shards])
    if folder.tokenizer is None:
        return tokens.astype(np.uint8).tobytes().decode()
    return b"".join(folder.tokenizer.decode(int(token)) for token in tokens).decode()


def test_a_text_in_pieces_is_all_there(book: Path, tmp_path: Path, small_pieces: None) -> None:
    folder = build([book], tmp_path / "out", tokenizer=400)
    assert _text(folder) == TEXT
    tally = folder.index.tally
    assert (tally.text_bytes, tally.texts, tally.replaced) == (len(TEXT.encode()), 1, 0)


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_a_large_part_is_appended_in_pieces(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compressed file is one part, however large it is."""
    monkeypatch.setattr(builds, "_TEXT_BYTES", 4096)
    monkeypatch.setattr(builds, "COPY_BYTES", 10_000)
    appended: list[int] = []
    append = assembly.Assembly.append
    monkeypatch.setattr(
        assembly.Assembly,
        "append",
        lambda shards, data: (appended.append(len(data)), append(shards, data)),
    )
    (path := tmp_path / name).write_bytes(zipped(TEXT.encode()) if "gz" in name else TEXT.encode())
    assert _text(build([path], tmp_path / "out")) == TEXT
    assert max(appended) < 4 * sources.FRAGMENT_BYTES < sum(appended)


def test_pieces_do_not_change_bytes(book: Path, tmp_path: Path, small_pieces: None) -> None:
    book.write_text(TEXT.replace("\n", "é") + "no line ends here")  # cuts would be within letters
    folder = build([book], tmp_path / "out")
    assert _text(folder) == book.read_text() + "\n"
    assert folder.index.tally.replaced == 0


INTERRUPTED = """
import os, signal, sys
from pathlib import Path
from model_zoo.datasets import sources
from model_zoo.datasets.build import build

sources.PIECE_BYTES = 20_000
told = []

def tell(*progress):
    told.append(progress)
    if len(told) == 5:
        os.kill(os.getpid(), signal.SIGKILL)

build([Path(sys.argv[1])], Path(sys.argv[2]), tokenizer=400, tell=tell)
"""


def test_a_killed_build_goes_on_where_it_was(
    book: Path, tmp_path: Path, small_pieces: None
) -> None:
    whole = build([book], tmp_path / "whole", tokenizer=400)
    out = tmp_path / "out"
    command = [sys.executable, "-c", INTERRUPTED, str(book), str(out)]
    assert subprocess.run(command, timeout=60).returncode == -signal.SIGKILL
    assert not is_data_folder(out)
    with (out / "shard-00000.bin").open("ab") as file:
        file.write(b"half a part that was not noted")
    told: list[tuple[int, int]] = []
    folder = build([book], out, tokenizer=400, tell=lambda *now: told.append(now))
    assert folder.index == whole.index
    assert list(proven_leaves(folder))
    assert told[0][0] == 4 * 20_000
    assert told[-1][0] == told[-1][1]


def test_what_another_program_has_not_finished_is_begun_anew(
    book: Path, tmp_path: Path, small_pieces: None
) -> None:
    made = build([book], tmp_path / "out", tokenizer=400)
    note = made.path / ".progress.json"
    (made.path / "index.json").unlink()
    noted = json.loads(note.read_bytes())
    note.write_text(json.dumps(noted | {"parts": noted.pop("pieces") // 2}))
    assert build([book], made.path, tokenizer=400).index == made.index
    assert list(proven_leaves(open_folder(made.path)))


def test_a_full_disk_loses_nothing(
    book: Path, tmp_path: Path, small_pieces: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    append, calls = assembly.append, Counter[str]()

    def full(path: Path, data: bytes) -> None:
        calls[path.name] += 1
        if calls[path.name] == 4:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        append(path, data)

    with monkeypatch.context() as patch:
        patch.setattr(assembly, "append", full)
        with pytest.raises(DataError, match="full: free space and run the same command again"):
            build([book], tmp_path / "out")
    told: list[tuple[int, int]] = []
    folder = build([book], tmp_path / "out", tell=lambda *now: told.append(now))
    assert told[0][0] > 0
    assert _text(folder) == TEXT


def test_a_complete_folder_is_not_built_again(book: Path, tmp_path: Path) -> None:
    before = build([book], tmp_path / "out").index
    assert build([book], tmp_path / "out").index == before
    with pytest.raises(DataError, match="is made of other data"):
        build([book], tmp_path / "out", tokenizer=400)
    book.write_text("changed")
    with pytest.raises(DataError, match="is made of other data"):
        build([book], tmp_path / "out")
    with pytest.raises(DataError, match="is not empty"):
        build([book], tmp_path)


def test_a_build_that_failed_can_be_corrected(tmp_path: Path, small_pieces: None) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"body": f"row {n}"}) + "\n" for n in range(4000)))
    with pytest.raises(DataError, match=r"4,000 rows that cannot .*name it with --field"):
        build([rows], tmp_path / "out", tokenizer=280)
    folder = build([rows], tmp_path / "out", tokenizer=300, field="body")
    assert folder.index.tally.texts == 4000
    assert folder.tokenizer.vocab > 280


def test_rows_that_cannot_be_used_are_left_out(tmp_path: Path, small_pieces: None) -> None:
    good = [json.dumps({"text": f"row {n}"}) for n in range(4000)]
    rows = tmp_path / "rows.jsonl"
    rows.write_text("\n".join([*good, '{"text": 5}', "{", *good, '{"txt": ""}']) + "\n")
    folder = build([rows], tmp_path / "out")
    assert (folder.index.tally.texts, folder.index.tally.skipped) == (8000, 3)
    assert [name.split(", ")[1] for name in folder.index.skipped_rows] == [
        "line 4001",
        "line 4002",
        "line 8003",
    ]
    assert open_folder(tmp_path / "out").index == folder.index
    (tmp_path / "bad.jsonl").write_text('{"text": 5}\n' * 999)
    with pytest.raises(DataError, match=r"no text at all and 999 rows .* line 1, has no string"):
        build([tmp_path / "bad.jsonl"], tmp_path / "none")


@pytest.fixture
def interrupts() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt, also in tests that a shell runs in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interrupts")
def test_training_a_tokenizer_can_be_interrupted() -> None:
    main, ended = threading.main_thread().ident, threading.Event()

    def train() -> None:
        signal.pthread_kill(main, signal.SIGINT)
        ended.wait(600)

    with pytest.raises(KeyboardInterrupt):
        interruptible(train)
    ended.set()
    assert interruptible(lambda: 2) == 2
    with pytest.raises(ZeroDivisionError):
        interruptible(lambda: 1 // 0)


def test_a_tokenizer_is_trained_on_what_is_left_of_bad_rows(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"text": 5}\n{"text": "the good one"}\n')
    folder = build([rows], tmp_path / "out", tokenizer=280)
    assert (folder.index.tally.texts, folder.index.tally.skipped) == (1, 1)


def test_a_folder_of_many_kinds(tmp_path: Path) -> None:
    rows = [json.dumps({"text": f"row {n}"}) for n in range(3)]
    files = tmp_path / "files"
    (files / "b").mkdir(parents=True)
    (files / ".hidden").mkdir()
    (files / "a.txt").write_text("plain\n")
    (files / "b" / "rows.jsonl").write_text("\n".join(rows))
    (files / "b" / "rows.jsonl.gz").write_bytes(zipped("\n".join(rows).encode()))
    (files / "c.txt.gz").write_bytes(zipped(b"packed"))
    (files / "empty.txt").touch()
    (files / "picture.png").write_bytes(b"\x89PNG\0\0\0")
    (files / ".hidden" / "d.txt").write_text("hidden")
    left_out: list[str] = []
    folder = build([files], tmp_path / "out", left_out=left_out.extend)
    row = "row 0\nrow 1\nrow 2\n"
    assert _text(folder) == f"plain\n{row}{row}packed\n"
    assert folder.index.tally.texts == 8
    assert [words.split("/")[-1] for words in left_out] == [
        "empty.txt is empty",
        "picture.png is binary: it is no text",
    ]


WORDS = b"text and more text\n" * 9000
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 9\n"
NO_TEXT = [
    ("a.pdf", b"%PDF-1.7\n" + WORDS, "is a PDF"),
    ("a", b"PAR1" + WORDS, "is parquet: its name has to end with .parquet"),
    ("a.txt", zipped(WORDS), "is packed with gzip"),
    ("a.gzip", zipped(WORDS), "is packed with gzip"),
    ("a.docx", b"PK\3\4" + WORDS, "is a zip archive"),
    ("a.tar", b"a.txt".ljust(257) + b"ustar" + WORDS, "is a tar archive: unpack it"),
    ("a.tar.gz", zipped(b"a.txt".ljust(257) + b"ustar" + WORDS), "is a tar archive"),
    ("a.txt", WORDS.decode().encode("utf-16"), "is UTF-16: make UTF-8 of it"),
    ("a.jsonl", '{"text": "x"}\n'.encode("utf-16"), "is UTF-16: make UTF-8 of it"),
    ("a.json", b'\xef\xbb\xbf \n[{"text": "x"}]', "is a JSON array: make JSON lines of it"),
    ("a.jsonl", b'[{"text": "x"}]', "is a JSON array: make JSON lines of it"),
    ("a.json", b'{"text": "x"}\r\n\n{"text": "y"}\n', "has JSON lines: its name has to end with"),
    ("a.json.gz", zipped(b'[{"text": "x"}]'), "is a JSON array: make JSON lines of it"),
    ("a.txt", "für Größe\n".encode("latin1") * 99, "is not UTF-8: if it is text, make UTF-8 of it"),
    ("a.txt", WORDS + b"\0" * 20_000, "is binary from byte 1"),
    ("a.txt", WORDS + bytes(range(128, 256)) * 200, "is binary from byte 1"),
    ("a.txt", LFS, "is a pointer of Git LFS"),
    ("a.parquet", LFS, "is a pointer of Git LFS"),
    ("a.txt.gz", LFS, "is a pointer of Git LFS"),
    ("a.txt", b"", "is empty"),
    ("a.txt", b"\x7fELF\0\0", "is binary"),
    ("a.txt.gz", b"no gzip", "cannot be read"),
    ("a.jsonl", b'\n{"text"', "line 2, is not JSON"),
    ("a.jsonl", b'{"text": "\xff"}\n', "line 1, is not JSON"),
    ("a.jsonl", b'{"text": ' + b"[" * 100_000, "line 1, is not JSON"),
    ("a.jsonl", b"1\n", "line 1, has no string"),
    ("a.jsonl", b'{"body": "a"}\n', 'no string field "text"; name it with --field'),
    ("a.jsonl", b"\n\n", "no text at all|is empty"),
    ("a.jsonl.gz", zipped(b'{"text": "a"}\n' * 99)[:-9], "cannot be read"),
    ("a.txt.gz", zipped(b"a text")[:12] + b"\xff" * 20, "cannot be read"),
    ("a.parquet", b"PAR1" * 9, "cannot read"),
]


@pytest.mark.parametrize(
    ("name", "data", "words"), NO_TEXT, ids=[f"{name} {words}" for name, _, words in NO_TEXT]
)
def test_what_is_no_text_is_refused(tmp_path: Path, name: str, data: bytes, words: str) -> None:
    (path := tmp_path / name).write_bytes(data)
    with pytest.raises(DataError, match=words):
        build([path], tmp_path / "out")


ODD_ROWS = (
    b'\xef\xbb\xbf{"text": "a mark before it"}\n'
    b'{"text": "beside it", "score": NaN}\n'
    b'{"text": "half \\ud800a character"}\n'
    b'{"text": null}\n'
    b'{"text": ""}\n'
    b'{"text": "ends with a line\\n"}\n'
)
ODD_TEXT = "a mark before it\nbeside it\nhalf a character\nends with a line\n"


OTHER_JSON = ['{\n  "name": "x"\n}\n', '{"a": 1}\n', "{}\nand words\n"]


@pytest.mark.parametrize(
    ("name", "data", "text"),
    [
        ("a.jsonl", ODD_ROWS, ODD_TEXT),
        ("a.JSONL", ODD_ROWS, ODD_TEXT),
        ("a.ndjson.GZ", zipped(ODD_ROWS), ODD_TEXT),
        ("a.txt", ODD_TEXT.encode(), ODD_TEXT),
        ("a.txt.gz", zipped(ODD_TEXT.encode()), ODD_TEXT),
        *(("package.json", text.encode(), text) for text in OTHER_JSON),
    ],
)
def test_every_reader_reads_the_same_text(
    tmp_path: Path, name: str, data: bytes, text: str
) -> None:
    (path := tmp_path / name).write_bytes(data)
    _check_same_text(path, tmp_path / "out", text)


@pytest.mark.parametrize("kind", ["string", "large_string", "string_view", "dictionary"])
def test_every_type_of_text_in_parquet_is_read(tmp_path: Path, kind: str) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    made = pyarrow.dictionary(pyarrow.int32(), pyarrow.string())
    column = made if kind == "dictionary" else getattr(pyarrow, kind)()
    texts = pyarrow.array(["one", None, "two", "one"]).cast(column)
    parquet.write_table(pyarrow.table({"text": texts}), tmp_path / "rows.parquet")
    _check_same_text(tmp_path / "rows.parquet", tmp_path / "out", "one\ntwo\none\n")


def _check_same_text(path: Path, out: Path, text: str) -> None:
    folder = build([path], out)
    assert _text(folder) == text
    assert list(proven_leaves(folder))


def test_a_plain_file_is_read_as_it_is(tmp_path: Path) -> None:
    words = b" and words" * 9000
    data = b"\xef\xbb\xbfa mark, \r\n a stray \xff byte" + words + b"\0 and a zero, no line end"
    (path := tmp_path / "book").write_bytes(data)
    (shard,) = build([path], tmp_path / "out").shards
    assert shard.view("<u2").astype(np.uint8).tobytes() == data + b"\n"


def test_lines_are_read_once_wherever_pieces_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rows.jsonl"
    lines = [json.dumps({"body": f"<{n}>"}) for n in range(200)]
    path.write_text("\n".join(lines))
    expected = "".join(f"<{n}>" for n in range(200))
    source, bad = sources.find_files([path])[0][0], list[sources.RowPlace]()
    for size in (7, 16, 17, 1000):
        monkeypatch.setattr(sources, "PIECE_BYTES", size)
        cut = sources.pieces(source, "body")
        texts = [
            found.text for piece in cut for found in sources.fragments(piece, "body", bad.append)
        ]
        assert b"".join(texts).decode() == expected
    assert not bad


def test_parquet(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "rows.parquet"
    table = pyarrow.table({"text": [f"row {n}" for n in range(9)] + [None], "n": list(range(10))})
    parquet.write_table(table, path, row_group_size=4)
    folder = build([path], tmp_path / "out")
    assert _text(folder) == "".join(f"row {n}\n" for n in range(9))
    with pytest.raises(DataError, match=r'no text column "n"; its columns are text, n'):
        build([path], tmp_path / "other", field="n")
    parquet.write_table(table.slice(0, 0), path)
    with pytest.raises(DataError, match="no text at all"):
        build([path], tmp_path / "other")


def test_zstandard(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    path = tmp_path / "rows.jsonl.zst"
    with pyarrow.output_stream(path, compression="zstd") as file:
        file.write(b'{"text": "a"}\n' * 9999)
    assert _text(build([path], tmp_path / "out")) == "a\n" * 9999
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(DataError, match=r"cannot (be )?read"):
        build([path], tmp_path / "cut")


def test_missing_files_and_empty_folders(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        build([tmp_path / "nothing"], tmp_path / "out")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="has no file with text"):
        build([tmp_path / "empty"], tmp_path / "out")


def test_stray_bytes_are_replaced_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "latin.txt"
    path.write_bytes(b"plain text " * 50 + b"caf\xe9\n")
    folder = build([path], tmp_path / "out", tokenizer=300)
    assert folder.index.tally.replaced == 1
    assert _text(folder).endswith("caf\ufffd\n")


def test_a_damaged_folder_is_found(book: Path, tmp_path: Path) -> None:
    book.write_text(TEXT * 3)
    out = tmp_path / "out"
    build([book], out)
    shard = out / "shard-00000.bin"
    with shard.open("r+b") as file:
        file.seek(LEAF_BYTES + 5)
        file.write(b"x")
    with pytest.raises(DataError, match="in its part 1 of 256 KiB"):
        list(proven_leaves(open_folder(out)))
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(DataError, match="it is damaged"):
        open_folder(out)
    (out / "index.json").unlink()
    with pytest.raises(DataError, match="no data folder, or one not completed"):
        open_folder(out)


def test_another_tokenizer_in_the_folder_is_refused(book: Path, tmp_path: Path) -> None:
    build([book], tmp_path / "out", tokenizer=400)
    other = build([book], tmp_path / "other", tokenizer=300).tokenizer
    (tmp_path / "out" / "tokenizer.json").write_bytes(other.data)
    with pytest.raises(DataError, match="not the tokenizer that made the tokens"):
        open_folder(tmp_path / "out")


def test_standard_library_order_and_skipping(tmp_path: Path) -> None:
    files = {
        "b.py": b"b\r\n",
        "a/z.py": b"z\n",
        "a.py": "ä\n".encode() + b"\xff",
        "test/t.py": b"no",
        "a/test/t.py": b"no",
        "site-packages/s.py": b"no",
        "_sysconfigdata_linux.py": b"no",
        "notes.txt": b"no",
    }
    for name, content in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    assert built_in_text(tmp_path) == "ä\nz\nb\n".encode()


# --- samples -------------------------------------------------------------------------------------


def _corpus(source: Path) -> Corpus:
    return corpus_of(str(source))


def test_an_epoch_has_every_window_once(book: Path, tmp_path: Path) -> None:
    build([book], tmp_path / "out", tokenizer=400)
    corpus = _corpus(tmp_path / "out")
    windows = corpus._windows_of(32)
    rows = [corpus.sample(n, 2, 32, seed=1) for n in range(windows.training // 2)]
    held_out = corpus.held_out_batch(0, windows.held_out, 32)
    seen: Counter[Any] = Counter(row.tobytes() for row in (*np.concatenate(rows), *held_out))
    assert len(seen) == 2 * (windows.training // 2) + windows.held_out
    assert set(seen.values()) == {1}
    assert corpus.bytes_of(held_out[:, 1:]) == sum(
        len(corpus.text_of(row[1:]).encode()) for row in held_out
    )


def test_samples_are_read_from_single_leaves(book: Path, tmp_path: Path) -> None:
    """Of those that they lie in, and no others."""
    book.write_text(TEXT * 9)
    folder = build([book], tmp_path / "out")
    corpus = Corpus.from_folder(folder)
    data = b"".join(shard.tobytes() for shard in folder.shards)
    windows, read = corpus._windows_of(5000), set()

    def read_leaf(index: int, offset: int, size: int) -> bytes:
        read.add(index)
        assert offset + size <= LEAF_BYTES
        return data[index * LEAF_BYTES + offset :][:size]

    parts = Corpus(read_leaf, corpus.spec)
    crossed = 0
    for number in range(20):
        sample = parts.sample(number, 1, 5000, seed=5)
        assert np.array_equal(sample, corpus.sample(number, 1, 5000, seed=5))
        assert read == set(leaves_of(windows.training_start(number, 5), 5000, 2))
        crossed += len(read) > 1
        read.clear()
    assert crossed


def test_a_missing_library_is_named_before_anything_is_made(
    book: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("tokenizers", "pyarrow", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, module, None)
    for name in ("rows.parquet", "a.zst"):
        (tmp_path / name).write_bytes(b"any")
        with pytest.raises(MissingPackage, match="pip install pyarrow"):
            build([tmp_path / name], tmp_path / "none")
    with pytest.raises(MissingPackage, match="pip install tokenizers"):
        build([book], tmp_path / "out", tokenizer=400)
    assert not (tmp_path / "out").exists()
    assert _text(build([book], tmp_path / "out")) == TEXT


def test_shards_are_one_file(book: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (assembly, sys.modules["model_zoo.specs.shards"]):
        monkeypatch.setattr(module, "SHARD_BYTES", LEAF_BYTES)
    folder = build([book], tmp_path / "out")
    assert len(folder.shards) == 2
    assert _text(folder) == TEXT
    assert list(proven_leaves(folder))
    corpus = _corpus(tmp_path / "out")
    assert all(corpus.sample(n, 1, 999, seed=1).shape == (1, 1000) for n in range(99))


def test_too_little_text_has_words(tmp_path: Path) -> None:
    path = tmp_path / "short.txt"
    path.write_text("short")
    build([path], tmp_path / "out")
    corpus = _corpus(tmp_path / "out")
    corpus.check(2)
    with pytest.raises(DataError, match=r"^short\.txt has 6 tokens, and a sample needs 4"):
        corpus.check(3)


@pytest.mark.parametrize(("vocab", "size"), [(1, 2), (1 << 16, 2), ((1 << 16) + 1, 4)])
def test_tokens_are_as_large_as_the_vocabulary_needs(vocab: int, size: int) -> None:
    dtype = np.dtype(token_dtype(vocab))
    assert dtype.itemsize == token_bytes(vocab) == size
    assert vocab - 1 <= np.iinfo(dtype).max
