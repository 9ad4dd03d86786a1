"""The records of a run: one line of JSON per contender and round, and the results.

An interrupted part continues where it stopped; one that is complete, or was begun with other
settings or on another machine, starts over. Earlier records stay in the file until it is complete.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

from tests.bench.machines import cpu

PACKAGES = ("torch", "numpy", "libp2p", "trio")
MACHINE = ("cpu", "cores", "memory_bytes", "system", "versions")
"""The settings that must be equal for a part to continue."""


@dataclass(frozen=True)
class Record:
    """The result of one contender in one round of one case; ``values`` are its samples."""

    part: str
    case: str
    who: str
    round: int
    values: list[float]
    unit: str
    load: float
    """Load of the machine over the minute before."""
    more: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Ratio:
    """One contender over another: median over the rounds, and the range."""

    middle: float
    least: float
    most: float
    rounds: int

    def __str__(self) -> str:
        if self.rounds < 2:
            return f"{self.middle:.2f}"
        return f"{self.middle:.2f} ({self.least:.2f} to {self.most:.2f})"


class Records:
    """The lines of a file. A part's runs follow one another, each from its line on the machine on.

    Shown of a part is its newest complete run, or the newest if none is; while it is measured, that
    run.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines: list[dict[str, Any]] = []
        self._measured: set[str] = set()
        if path.exists():
            self._lines = [json.loads(line) for line in path.read_text().splitlines()]

    def begin(
        self, part: str, settings: dict[str, Any], extra: dict[str, str], *, fresh: bool = False
    ) -> bool:
        """Continue a part, or start it over; return whether it was continued."""
        self._measured.add(part)
        newest, here = self._run(part), machine(extra)
        same = (
            bool(newest)
            and newest[0]["settings"] == settings
            and all(newest[0][name] == here[name] for name in MACHINE)
        )
        if same and not _complete(newest) and not fresh:
            return True
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._append({"kind": "machine", "part": part, "settings": settings, **here})
        return False

    def add(self, record: Record) -> None:
        """Keep a measurement."""
        self._append({"kind": "record", **asdict(record)})

    def note(self, part: str, words: str) -> None:
        """Keep a sentence: what a part could not do, and why."""
        self._append({"kind": "note", "part": part, "words": words})

    def end(self, part: str) -> None:
        """A part is complete: what was measured of it before is dropped."""
        self._append({"kind": "end", "part": part, "time": time.time()})
        newest = self._runs(part)[-1]
        self._lines = [line for line in self._lines if line["part"] != part] + newest
        beside = self._path.with_suffix(".new")
        beside.write_text("".join(json.dumps(line) + "\n" for line in self._lines))
        beside.replace(self._path)
        self._measured.discard(part)

    def complete(self, part: str) -> bool:
        """Whether what is shown of a part is all of it."""
        return _complete(self._run(part))

    def has(self, part: str, case: str, who: str, number: int) -> bool:
        """Whether this was measured already."""
        return any((r.case, r.who, r.round) == (case, who, number) for r in self.of(part))

    def of(self, part: str) -> list[Record]:
        """Return a part's measurements, oldest first."""
        names = Record.__dataclass_fields__
        return [
            Record(**{name: line[name] for name in names})
            for line in self._run(part)
            if line["kind"] == "record"
        ]

    def machine(self, part: str) -> dict[str, Any]:
        """Return the machine a part was measured on; empty if it was not."""
        return next(iter(self._run(part)), {})

    def notes(self, part: str) -> list[str]:
        """Return the part's sentences."""
        return [line["words"] for line in self._run(part) if line["kind"] == "note"]

    def _run(self, part: str) -> list[dict[str, Any]]:
        """Return the lines of the run that counts."""
        runs = self._runs(part)
        done = [] if part in self._measured else [run for run in runs if _complete(run)]
        shown = done or runs
        return shown[-1] if shown else []

    def _runs(self, part: str) -> list[list[dict[str, Any]]]:
        runs: list[list[dict[str, Any]]] = []
        for line in self._lines:
            if line["part"] == part:
                if line["kind"] == "machine":
                    runs.append([])
                runs[-1].append(line)
        return runs

    def _append(self, line: dict[str, Any]) -> None:
        self._lines.append(line)
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")


def _complete(run: Sequence[dict[str, Any]]) -> bool:
    return any(line["kind"] == "end" for line in run)


def cases(records: Sequence[Record]) -> Iterator[tuple[str, list[Record]]]:
    """Yield the cases in the order in which they were first measured."""
    for case in dict.fromkeys(record.case for record in records):
        yield case, [record for record in records if record.case == case]


def values(records: Sequence[Record], who: str) -> list[float]:
    """Return all samples of a contender."""
    return [value for record in records if record.who == who for value in record.values]


def spread(samples: Sequence[float], digits: int = 3) -> str:
    """Return median and range in words; empty without samples."""
    if not samples:
        return ""
    middle = f"{statistics.median(samples):.{digits}g}"
    if len(samples) < 2:
        return middle
    return f"{middle} ({min(samples):.{digits}g} to {max(samples):.{digits}g})"


def ratio(records: Sequence[Record], over: str, under: str) -> Ratio | None:
    """Return median(over) / median(under) round by round, as both ran one after the other."""
    medians = {
        who: {r.round: statistics.median(r.values) for r in records if r.who == who and r.values}
        for who in (over, under)
    }
    both = sorted(medians[over].keys() & medians[under].keys())
    found = [medians[over][number] / medians[under][number] for number in both]
    if not found:
        return None
    return Ratio(statistics.median(found), min(found), max(found), len(found))


def machine(extra: dict[str, str]) -> dict[str, Any]:
    """Describe this machine and how busy it is; ``extra``: versions of rivals."""
    return {
        "time": time.time(),
        "cpu": cpu(),
        "cores": os.cpu_count() or 0,
        "memory_bytes": psutil.virtual_memory().total,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": {**{name: _version(name) for name in PACKAGES}, **extra},
        "load_before": round(load(), 2),
    }


def load() -> float:
    """Return the machine's load over the last minute."""
    return os.getloadavg()[0]


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
