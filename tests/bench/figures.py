"""The figures on the page: read, record, and write the page from them.

``page.md`` is the prose, with a line ``{{NAME}}`` where the table of that name goes. The rows are
the lines of ``results/figures.jsonl``. A benchmark adds or replaces its own lines with ``record``;
those of the others are written by hand. A row is stale if what it measures has changed since the
version of the code that it names, or if it names none.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from tests.bench.machines import this_machine

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
PAGE = HERE / "README.md"
PROSE = HERE / "page.md"
FIGURES = HERE / "results" / "figures.jsonl"
HEAD = "| what | value | spread | command | machine | code |\n| --- | --- | --- | --- | --- | --- |"
PLACE = re.compile(r"^\{\{(.+)\}\}$", re.MULTILINE)


class Figure(Struct, frozen=True, forbid_unknown_fields=True):
    """One measurement, as the page shows it."""

    table: str
    what: str
    value: str
    spread: str
    """How far it varied, and of how many runs it is the median."""
    command: str
    machine: str
    code: str
    """The commit that was measured, or that wrote the figures shortly after; empty: not known."""
    measures: tuple[str, ...]
    """Files and folders that, when they change, make the figure one of older code."""


def read(path: Path = FIGURES) -> list[Figure]:
    """Return the figures; raises ``msgspec.ValidationError`` if a line is not one."""
    return [msgspec.json.decode(line, type=Figure) for line in path.read_text().splitlines()]


def page(figures: list[Figure], prose: str, is_stale: Callable[[Figure], bool]) -> str:
    """Return the page.

    Args:
        figures: All rows.
        prose: The text with places for tables.
        is_stale: Whether a figure is of older code.

    Raises:
        KeyError: a table has no place, or a place no table.
    """
    tables: dict[str, list[str]] = {}
    for figure in figures:
        tables.setdefault(figure.table, []).append(_row(figure, stale=is_stale(figure)))
    text = PLACE.sub(lambda place: "\n".join([HEAD, *tables.pop(place[1])]), prose)
    if tables:
        raise KeyError(f"no place on the page for {sorted(tables)}")
    return text


def _row(figure: Figure, *, stale: bool) -> str:
    code = f"`{figure.code}`" if figure.code else "unknown"
    said = f"{code}, stale" if stale else code
    command = f"`{figure.command}`" if figure.command else ""
    cells = (figure.what, figure.value, figure.spread, command, figure.machine, said)
    return f"| {' | '.join(cells)} |"


def is_stale(figure: Figure, repository: Path = REPOSITORY) -> bool:
    """Tell whether what a figure measures was changed after its code, by the dates of commits."""
    if not figure.code:
        return True
    measured = _date(repository, figure.code)
    changed = _date(repository, "HEAD", "--diff-filter=M", "--", *figure.measures)
    return measured is None or (changed is not None and changed > measured)


def _date(repository: Path, *arguments: str) -> int | None:
    """Return when the newest commit that fits was made, in seconds; None: there is none."""
    git = ["git", "-C", str(repository), "log", "-1", "--format=%ct", *arguments]
    done = subprocess.run(git, capture_output=True, text=True, check=False)
    return int(done.stdout) if done.returncode == 0 and done.stdout.strip() else None


def write_page() -> tuple[int, int]:
    """Write the page; return the number of rows, and how many of them are of older code."""
    figures = read()
    stale = {figure for figure in figures if is_stale(figure)}
    PAGE.write_text(page(figures, PROSE.read_text(), stale.__contains__))
    return len(figures), len(stale)


# --- recording -------------------------------------------------------------------------------


def add_record_flag(parser: argparse.ArgumentParser) -> None:
    """Let a benchmark be asked to record what it measures."""
    parser.add_argument(
        "--record", action="store_true", help="put the figures on the page, tests/bench/README.md"
    )


def figure(
    table: str, what: str, value: str, spread: str, command: str, measures: Sequence[str]
) -> Figure:
    """Return a figure of this machine and of the code that is checked out.

    Args:
        table: Name of the table on the page.
        what: What was measured; a later measurement with the same words replaces it.
        value: The figure with its unit.
        spread: How far it varied, and of how many runs it is the median.
        command: What measures it again.
        measures: Files and folders, as in ``Figure``. If one of them differs from the last commit,
            the row names no code.
    """
    machine = f"{this_machine()}, load {os.getloadavg()[0]:.0f}"
    code = _checked_out(REPOSITORY, measures)
    return Figure(table, what, value, spread, command, machine, code, tuple(measures))


def _checked_out(repository: Path, measures: Sequence[str]) -> str:
    """Return the commit that is checked out; empty if files that are measured are changed."""
    git = ("git", "-C", str(repository))
    changed = [*git, "status", "--porcelain", "--", *measures]
    if subprocess.run(changed, capture_output=True, text=True, check=True).stdout:
        return ""
    head = [*git, "rev-parse", "--short", "HEAD"]
    return subprocess.run(head, capture_output=True, text=True, check=True).stdout.strip()


def record(new: Sequence[Figure], path: Path = FIGURES) -> None:
    """Put figures in place of those of the same table with the same words, or at the table's end,
    and write the page."""
    figures = merged(read(path), new)
    lines = (json.dumps(msgspec.to_builtins(each), ensure_ascii=False) for each in figures)
    path.write_text("".join(f"{line}\n" for line in lines))
    write_page()


def merged(known: Sequence[Figure], new: Sequence[Figure]) -> list[Figure]:
    """Return the known figures with the new ones among them."""
    figures = list(known)
    for one in new:
        same = [
            i for i, old in enumerate(figures) if (old.table, old.what) == (one.table, one.what)
        ]
        table = [i for i, old in enumerate(figures) if old.table == one.table]
        if same:
            figures[same[0]] = one
        else:
            figures.insert(table[-1] + 1 if table else len(figures), one)
    return figures
