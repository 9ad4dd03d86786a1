"""The page of figures is what the results say, and a row of older code says so."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import msgspec
import pytest

from tests.bench.figures import PAGE, PROSE, REPOSITORY, Figure, is_stale, page, read

FIGURE = Figure("speed", "steps", "3 s", "2-4 s", "python -m x", "A", "", ("measured",))


def test_the_page_is_current_with_the_results() -> None:
    """Whether a row is stale changes with every commit: that may be of the day it was written."""
    written = page(read(), PROSE.read_text(), lambda figure: False)
    assert PAGE.read_text().replace(", stale |", " |") == written, "run python -m tests.bench"


@pytest.mark.parametrize("figure", read(), ids=lambda figure: figure.what)
def test_a_row_says_how_it_was_measured_and_what(figure: Figure) -> None:
    assert figure.value
    assert figure.command
    assert figure.machine
    assert figure.measures
    assert all((REPOSITORY / path).exists() for path in figure.measures)
    assert not any("|" in cell for cell in (figure.what, figure.value, figure.spread))


def test_tables_are_put_where_the_prose_wants_them() -> None:
    written = page([FIGURE], "Before.\n\n{{speed}}\n\nAfter.\n", lambda figure: True)
    row = "| steps | 3 s | 2-4 s | `python -m x` | A | unknown, stale |"
    assert written.splitlines()[-3] == row
    with pytest.raises(KeyError, match="speed"):
        page([FIGURE], "No place.", lambda figure: True)
    with pytest.raises(KeyError, match="other"):
        page([FIGURE], "{{speed}}\n{{other}}\n", lambda figure: True)


def test_a_row_is_stale_once_what_it_measures_is_changed(tmp_path: Path) -> None:
    git = Git(tmp_path)
    git.write("measured", "once", 1)
    made = git.write("other", "once", 2)
    figure = msgspec.structs.replace(FIGURE, code=made)
    assert not is_stale(figure, tmp_path)
    assert is_stale(FIGURE, tmp_path), "nobody knows of which version it is"
    git.write("other", "again", 3)
    assert not is_stale(figure, tmp_path)
    git.write("measured", "changed", 4)
    assert is_stale(figure, tmp_path)


class Git:
    """A repository with a commit a second."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._run("init", "-q", at=0)

    def write(self, name: str, text: str, at: int) -> str:
        """Commit a file; return the commit."""
        (self._folder / name).write_text(text)
        self._run("add", name, at=at)
        self._run("commit", "-q", "-m", text, at=at)
        return self._run("rev-parse", "HEAD", at=at)

    def _run(self, *arguments: str, at: int) -> str:
        who = {"AUTHOR": "someone", "COMMITTER": "someone"}
        named = {f"GIT_{role}_NAME": name for role, name in who.items()}
        mailed = {f"GIT_{role}_EMAIL": "someone@example.org" for role in who}
        dated = {f"GIT_{role}_DATE": f"{1_700_000_000 + at} +0000" for role in who}
        done = subprocess.run(
            ["git", *arguments],
            cwd=self._folder,
            env=os.environ | named | mailed | dated,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip()
