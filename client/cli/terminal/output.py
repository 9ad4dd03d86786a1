"""Output of commands: data on stdout, messages to the user on stderr.

Names and reasons come from strangers and text from a model. So all text for a terminal goes through
``printable``, and documents through ``json_line`` or ``json_document``: no input can move the
cursor, set the title or reverse the reading order.
"""

import os
import re
import shutil
import sys
import textwrap
from contextlib import suppress
from pathlib import Path
from typing import Final, TextIO

import msgspec

from client.errors import UsageError

SCHEMA_VERSION: Final = 1
"""Of the documents that commands print; raised when a field is removed or means something else."""


def print_json(answer: object) -> None:
    """Print one JSON document on stdout."""
    print(json_document(versioned(answer)))


def versioned(answer: object) -> dict[str, object]:
    """Return an answer with its ``schema_version``; a node's own answers have theirs."""
    return {"schema_version": SCHEMA_VERSION, **msgspec.to_builtins(answer)}


def json_document(data: object) -> str:
    """Return JSON over several lines with terminal controls escaped, without loss."""
    return _escaped(msgspec.json.format(msgspec.json.encode(data), indent=2).decode())


def json_line(data: object) -> str:
    """Return JSON as one line with terminal controls escaped, without loss."""
    return _escaped(msgspec.json.encode(data).decode())


def check_output(path: Path, *, force: bool) -> None:
    """Refuse the file of ``--out`` before the work for it is done; ``force``: it may be replaced.

    Raises:
        UserError: it is there already, or cannot be written.
    """
    if path.exists() and not force:
        raise UsageError(f"{path} exists already", "choose another --out, or --force")
    problem = ""
    if path.is_dir():
        problem = "it is a folder"
    elif not path.parent.is_dir():
        problem = f"there is no folder {path.parent}"
    elif not os.access(path.parent, os.W_OK):
        problem = f"{path.parent} is not writable"
    if problem:
        raise UsageError(f"cannot write {path}: {problem}", "choose another --out")


def say(text: str) -> None:
    """Tell the user a message that is not the result; one that nobody can read changes nothing."""
    with suppress(OSError):
        print(shown(text, sys.stderr), file=sys.stderr, flush=True)


def shown(text: str, stream: TextIO) -> str:
    """Return printable text, broken at words where ``stream`` is a terminal; not a line with a word
    that does not fit, such as an address."""
    text = printable(text)
    if not stream.isatty():
        return text
    columns = shutil.get_terminal_size().columns
    lines = []
    for line in text.split("\n"):
        broken = wrapped(line, columns)
        lines.append(broken if max(map(len, broken.split("\n"))) <= columns else line)
    return "\n".join(lines)


def wrapped(line: str, columns: int) -> str:
    """Return a line broken at words, indented as it is, or to what stands behind its label."""
    label = re.match(r" *\S+ {2,}| *", line)
    indent = " " * label.end() if label else ""
    return textwrap.fill(
        line, columns, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def printable(text: str) -> str:
    """Return text whose control characters, but for newline and tab, are replaced."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)


def one_line(words: str) -> str:
    """Return text as one line: one event must not look like several."""
    return printable(words).replace("\n", " ")


def with_level(level: str, words: str) -> str:
    """Return words as one line, behind their level where it matters."""
    return f"{level}: {one_line(words)}" if level in ("warning", "error") else one_line(words)


def _escaped(document: str) -> str:
    """Return the same JSON with every character escaped that does not print.

    Such characters stand in texts only, where JSON knows an escape for each: beyond the line breaks
    between its parts the encoder writes nothing but ASCII around them.
    """
    if document.isprintable():
        return document
    return "".join(c if c.isprintable() or c == "\n" else _escape(c) for c in document)


def _escape(character: str) -> str:
    units = character.encode("utf-16-be")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))
