"""Writes tracebacks to a file for the report, so that users see one clear line instead."""

from __future__ import annotations

import tempfile
import traceback
from pathlib import Path

from client.cli.logging.log_file import append_error

MAX_CHARS = 64 * 1024
KEPT = "the traceback is in "


def keep_traceback(error: Exception, folder: Path) -> None:
    """Add the traceback to the errors of a node's log folder, and a note to the error saying so.

    Does nothing where the disk fails: ``save_traceback`` will try elsewhere.
    """
    path = append_error(folder, _formatted(error)[-MAX_CHARS:])
    if path is not None:
        error.add_note(f"{KEPT}{path}")


def save_traceback(error: BaseException) -> str:
    """Return in words where the traceback is; it gets a file of its own unless it was saved before.

    Never raises: a full disk must not hide the error itself.
    """
    kept = [note for note in getattr(error, "__notes__", ()) if note.startswith(KEPT)]
    if kept:
        return str(kept[-1])
    text = _formatted(error)
    try:
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", prefix="volunteer-crash-", suffix=".txt", delete=False
        ) as file:
            file.write(text)
    except OSError as failure:
        return f"the traceback could not be saved ({failure.strerror}); run again with --debug"
    return f"{KEPT}{file.name}"


def _formatted(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))
