"""Collects the files of a problem report, without secrets.

A ZIP of small text files: doctor's findings, the settings, the state of running nodes, and the end
of the log. The private key is never read.
"""

import io
import os
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import structs

from client.cli.diagnosis.checks import Check
from client.cli.logging.log_file import ERRORS_NAME, read_lines
from client.cli.reach.home import Home
from client.cli.software import versions
from client.cli.terminal.output import json_document, json_line
from client.control.client import ControlClient, ControlError, running_nodes
from client.control.snapshot import Snapshot
from client.errors import ExitCode, system_errors
from client.redaction import Redactor

MOST_LINES = 2000
MOST_ERROR_CHARS = 64_000


def write_bundle(path: Path, home: Home, checks: list[Check]) -> None:
    """Write the bundle; its texts are cleaned, but the owner should still check them.

    Args:
        path: the ZIP file to write.
        home: of the volunteer.
        checks: results of the doctor.

    Raises:
        UserError: the file is there already, or cannot be written.
    """
    redactor = Redactor()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as bundle:
        for name, text in _parts(home, checks):
            bundle.writestr(name, redactor.clean(text))
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with (
        system_errors(f"cannot write {path}", "choose another file", ExitCode.USAGE),
        os.fdopen(os.open(path, flags, 0o600), "wb") as file,
    ):
        file.write(packed.getvalue())


def _parts(home: Home, checks: list[Check]) -> Iterator[tuple[str, str]]:
    """Yield names and texts, not cleaned yet."""
    yield "doctor.json", json_document(checks)
    written = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    yield "versions.json", json_document(versions() | {"written": written})
    settings = msgspec.to_builtins(home.settings) | {"nickname": "[name]"}
    chosen = {"settings": settings, "origins": dict(home.resolved.origins)}
    yield "settings.json", json_document(chosen)
    for number, (path, _) in enumerate(running_nodes(home.folders.runtime)):
        try:
            with ControlClient(path) as node:
                yield f"status-{number}.json", json_document(_nameless(node.status()))
        except ControlError as error:
            yield f"status-{number}.txt", str(error)
    lines = [json_line(line) for line in read_lines(home.folders.logs)]
    yield "log.jsonl", "\n".join(lines[-MOST_LINES:])
    try:
        errors = (home.folders.logs / ERRORS_NAME).read_text(errors="replace")
    except OSError:
        errors = ""
    yield "errors.txt", errors[-MOST_ERROR_CHARS:]


def _nameless(now: Snapshot) -> Snapshot:
    """Return a status without the names of people; their ids stay."""
    found = [structs.replace(one, name="") for one in now.contributors]
    return structs.replace(now, names={}, contributors=found)
