"""Tokenizes on the command line: the progress, the errors, and the text of a new swarm."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from client.cli.founding.options import RunChoices, usage
from client.cli.terminal.output import say
from client.errors import ExitCode, UserError, system_errors
from client.store.paths import create_folders
from client.views.words import size as human_bytes
from model_zoo.specs.tokens import BYTES

if TYPE_CHECKING:
    from model_zoo.datasets.folder import Index
    from model_zoo.tokenizers.bpe import Bpe

SHOWN_LEFT_OUT = 3
SHOWN_ROWS = 8
"""Of those that cannot be used; the folder's index has more."""
READABLE = (
    "give --data a file of UTF-8 text, .jsonl or .parquet, or a folder of volunteer data build, or "
    "leave it out"
)
PLAIN_EVERY_S = 10.0
"""Time between lines of progress where there is no terminal."""


@contextmanager
def tokenized(run: RunChoices, folder: Path) -> Iterator[RunChoices]:
    """Yield the choices with a folder of tokens as data, made of the text unless they name one.

    It is made in ``folder``, and removed afterwards. If it is interrupted, the same command goes on
    from it.

    Raises:
        UserError: the text or the tokenizer cannot be used.
    """
    from model_zoo.datasets.folder import is_data_folder

    path = Path(run.data).expanduser().absolute()
    if is_data_folder(path):
        if run.tokenizer is not None:
            problem = f"{path} has tokens already, and they bring their tokenizer"
            raise usage(problem, "leave --tokenizer out")
        yield run
        return
    from model_zoo.data import BUILT_IN
    from model_zoo.datasets.build import build

    choice = run.tokenizer or BYTES
    problem = f"cannot write to {folder}"
    next_step = "make it writable, or set data_dir to another disk"
    room = system_errors(problem, next_step, ExitCode.CONFIG)
    with room, data_errors(), BuildLine() as line:
        create_folders(folder)
        tokenizer = chosen_tokenizer(choice)
        if run.data == BUILT_IN:
            path = _built_in_text(folder)
        made = folder / f".tokens-{_named(path, choice)}"
        with data_errors(READABLE):
            found = build([path], made, tokenizer=tokenizer, tell=line.show, left_out=say_left_out)
    for words in skipped(found.index):
        say(words)
    yield replace(run, data=str(made), name=run.swarm_name, tokenizer=None)
    shutil.rmtree(made)
    if run.data == BUILT_IN:
        path.unlink()


def chosen_tokenizer(choice: str) -> Bpe | int | None:
    """Return the tokenizer as ``parse_tokenizer`` does, and say so if one is to be trained, which
    shows no progress."""
    from model_zoo.datasets.choice import parse_tokenizer

    found = parse_tokenizer(choice)
    if isinstance(found, int):
        say(f"training a tokenizer of {found:,} tokens, for up to a minute ...")
    return found


def _built_in_text(folder: Path) -> Path:
    """Return a file of Python's own source."""
    from model_zoo.data import BUILT_IN, built_in_text

    path, text = folder / BUILT_IN, built_in_text()
    if not (path.is_file() and path.read_bytes() == text):
        path.write_bytes(text)
    return path


def _named(path: Path, tokenizer: str) -> str:
    """Return a name for the tokens of a file or folder, as it is now."""
    changed = path.stat().st_mtime_ns if path.exists() else 0
    words = os.fsencode(f"{path} {changed} {tokenizer}")
    return blake2b(words, digest_size=8).hexdigest()


@contextmanager
def data_errors(next_step: str = "see volunteer data --help") -> Iterator[None]:
    """Turn the errors of data into those of the command line."""
    from model_zoo.data import DataError

    try:
        yield
    except DataError as error:
        raise UserError(str(error), next_step, ExitCode.CONFIG) from error


def say_left_out(files: list[str]) -> None:
    """Say which files of folders have no text."""
    for words in files[:SHOWN_LEFT_OUT]:
        say(f"note: left out: {words}")
    if len(files) > SHOWN_LEFT_OUT:
        say(f"note: and {len(files) - SHOWN_LEFT_OUT} more")


def skipped(index: Index) -> Iterator[str]:
    """Yield lines about the rows that could not be used, with the first of them."""
    rows, names = index.tally.skipped, index.skipped_rows[:SHOWN_ROWS]
    if not rows:
        return
    share = f"{rows:,} of {rows + index.tally.texts:,} rows"
    yield f"note: {share} cannot be used and {'is' if rows == 1 else 'are'} left out:"
    yield from (f"  {name}" for name in names)
    if rows > len(names):
        yield f"  and {rows - len(names):,} more"


class BuildLine:
    """The progress of a build on one line of a terminal, and elsewhere on a new one now and then.

    Args:
        doing: what is done, in a word.
    """

    def __init__(self, doing: str = "tokenizing") -> None:
        self._doing = doing
        self._terminal = sys.stderr.isatty()
        self._begin: tuple[float, int] | None = None
        self._said = monotonic()

    def __enter__(self) -> BuildLine:
        return self

    def __exit__(self, *_: object) -> None:
        if self._terminal and self._begin is not None:
            print(file=sys.stderr, flush=True)

    def show(self, done_bytes: int, total_bytes: int) -> None:
        """Show how far the build is."""
        if self._begin is None:
            self._begin = monotonic(), done_bytes
        if not self._terminal and monotonic() - self._said < PLAIN_EVERY_S:
            return
        self._said = monotonic()
        since, before = self._begin
        rate = (done_bytes - before) / max(monotonic() - since, 1e-3)
        text = f"{self._doing} {done_bytes / max(total_bytes, 1):.0%}"
        if rate:
            left = (total_bytes - done_bytes) / rate
            text += f", {human_bytes(rate)}/s, {left:.0f} s left"
        if not self._terminal:
            say(text)
            return
        width = shutil.get_terminal_size().columns - 1
        print(f"\r\x1b[K{text[:width]}", end="", file=sys.stderr, flush=True)
