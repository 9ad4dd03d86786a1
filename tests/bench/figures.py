"""The figures on the page: read, record, and write the page from them.

``page.md`` is the prose, with a line ``{{NAME}}`` where the table of that name goes. The rows are
the lines of ``results/figures.jsonl``. ``make figures`` (``renew``) puts its rows in place of those
that are there.
"""

import json
import os
import re
import subprocess
from collections.abc import Sequence
from datetime import date
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
    """The commit that was measured, or that wrote the figures shortly after, and the day."""


def read(path: Path = FIGURES) -> list[Figure]:
    """Return the figures; raises ``msgspec.ValidationError`` if a line is not one."""
    return [msgspec.json.decode(line, type=Figure) for line in path.read_text().splitlines()]


def page(figures: Sequence[Figure], prose: str) -> str:
    """Return the page.

    Args:
        figures: all rows.
        prose: the text with places for tables; a place without rows says so.

    Raises:
        KeyError: a table has no place.
    """
    tables: dict[str, list[str]] = {}
    for one in figures:
        tables.setdefault(one.table, []).append(_row(one))
    text = PLACE.sub(
        lambda place: "\n".join([HEAD, *tables.pop(place[1], ["| not measured yet | | | | | |"])]),
        prose,
    )
    if tables:
        raise KeyError(f"no place on the page for {sorted(tables)}")
    return text


def _row(one: Figure) -> str:
    cells = (one.what, one.value, one.spread, f"`{one.command}`", one.machine, one.code)
    return f"| {' | '.join(cells)} |"


def write_page() -> None:
    PAGE.write_text(page(read(), PROSE.read_text()))


# --- recording -------------------------------------------------------------------------------


def figure(table: str, what: str, value: str, spread: str, command: str) -> Figure:
    """Return a figure of this machine and of the code that is checked out.

    Args:
        table: name of the table on the page.
        what: what was measured.
        value: the figure with its unit.
        spread: how far it varied, and of how many runs it is the median.
        command: what measures it again.
    """
    machine = f"{this_machine()}, load {os.getloadavg()[0]:.0f}"
    return Figure(table, what, value, spread, command, machine, checked_out())


def checked_out() -> str:
    """Return the commit that is checked out, whether the product differs from it, and the day."""
    git = ("git", "-C", str(REPOSITORY))
    product = [*git, "status", "--porcelain", "--", "client", "protocol", "model_zoo"]
    head = [*git, "rev-parse", "--short", "HEAD"]
    changed, commit = (
        subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        for command in (product, head)
    )
    return f"`{commit}`{' and changes' if changed else ''}, {date.today().isoformat()}"


def record(new: Sequence[Figure], path: Path = FIGURES) -> None:
    """Put figures in place of those of their tables, and write the page."""
    known = replaced(read(path), new)
    lines = (json.dumps(msgspec.to_builtins(each), ensure_ascii=False) for each in known)
    path.write_text("".join(f"{line}\n" for line in lines))
    write_page()


def replaced(known: Sequence[Figure], new: Sequence[Figure]) -> list[Figure]:
    """Return the figures with the tables of the new ones replaced, each where it was."""
    tables = dict.fromkeys(one.table for one in [*known, *new])
    renewed = {one.table for one in new}
    return [
        one
        for table in tables
        for one in (new if table in renewed else known)
        if one.table == table
    ]
