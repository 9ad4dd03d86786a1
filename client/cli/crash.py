"""Where tracebacks go: a file for the report, so that users see one clear line instead."""

from __future__ import annotations

import tempfile
import traceback


def save_traceback(error: BaseException) -> str:
    """Write the traceback to a file of its own and say in words where it is.

    Never raises: a full disk must not hide the error itself.
    """
    text = "".join(traceback.format_exception(error))
    try:
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", prefix="volunteer-crash-", suffix=".txt", delete=False
        ) as file:
            file.write(text)
    except OSError as failure:
        return f"the traceback could not be saved ({failure.strerror}); run again with --debug"
    return f"the traceback is in {file.name}"
