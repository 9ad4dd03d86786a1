"""The ablation as Markdown tables and SVG plots, beside the figures that the design was chosen by.

Pure but for writing its files; knows runs only as the dictionaries that ``ablation`` keeps.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from client.lab.svg import Curve, Labels, curves_chart
from tests.bench.ablation_reference import REFERENCE, REFERENCE_CHURN

Run = dict[str, Any]

WITHIN = 0.03
"""Ours may be this much below its reference."""
OURS = ("ours", "ours, not charged")

HEAD = """\
# Ablation of the matching

Written by `make ablation` (`tests/bench/ablation.py`); every run is a line of `ablation.jsonl`.
World and oracle: `client/lab/simulate/market/` (`setting.py` has the assumptions). Share:
integral of the throughput over that of the bound for one stage a volunteer, from a cold start. Mean
and (±) standard deviation over {seeds} seeds, {hours:g} simulated hours; in brackets the figures to
beat.
*Not charged*: averaging the second stage costs nothing, as in the simulation behind those figures.
"""
STALE = "*"
"""Marks what runs of other code have a part in."""


class Place(NamedTuple):
    """A cell and its churn."""

    volunteers: int
    stages: int
    churn: float

    @property
    def cell(self) -> str:
        """Name of the cell."""
        return f"{self.volunteers}/{self.stages}"


def name_of(run: Run) -> str:
    """Return the policy as the tables name it."""
    policy: str = run["figures"]["policy"]
    return policy if run["setting"]["charged"] else f"{policy}, not charged"


def place_of(run: Run) -> Place:
    """Return where a run belongs."""
    setting = run["setting"]
    return Place(setting["volunteers"], setting["stages"], setting["churn"])


class Table:
    """The runs by place and policy."""

    def __init__(self, runs: Iterable[Run]) -> None:
        self._runs: dict[tuple[Place, str], list[Run]] = defaultdict(list)
        for run in runs:
            self._runs[place_of(run), name_of(run)].append(run)
        self.places = sorted({place for place, _ in self._runs})
        self.cells = list(dict.fromkeys((p.volunteers, p.stages) for p in self.places))
        self.policies = _ordered({name for _, name in self._runs})

    def at(self, place: Place, policy: str) -> list[Run]:
        """Return the runs of all seeds."""
        return self._runs.get((place, policy), [])

    def of_cell(self, cell: tuple[int, int]) -> list[Place]:
        """Return the places of a cell, by churn."""
        return [place for place in self.places if (place.volunteers, place.stages) == cell]

    def mark(self, place: Place, policy: str) -> str:
        """Return the mark of what is there; empty if the present code made it all."""
        return STALE if any(run["stale"] for run in self.at(place, policy)) else ""

    def mean(self, place: Place, policy: str, name: str) -> float | None:
        """Return the mean of a figure over the seeds that have it, None if none has."""
        found = [run["figures"][name] for run in self.at(place, policy)]
        numbers = [value for value in found if value is not None]
        return statistics.fmean(numbers) if numbers else None


def _ordered(names: set[str]) -> list[str]:
    """Ours first, then the rest by name."""
    return sorted(names, key=lambda name: (not name.startswith("ours"), name))


def write_report(folder: Path, runs: Sequence[Run]) -> None:
    """Write ablation.md and its plots."""
    if not runs:
        (folder / "ablation.md").write_text("# Ablation of the matching\n\nNo runs yet.\n")
        return
    table = Table(runs)
    seeds = len({run["setting"]["seed"] for run in runs})
    hours = max(run["setting"]["hours"] for run in runs)
    parts = [HEAD.format(seeds=seeds, hours=hours), *_stale(runs), *_verdict(table)]
    for cell in table.cells:
        parts += _cell(table, cell, folder)
    parts += _blocking(table, folder)
    (folder / "ablation.md").write_text("\n".join(parts), encoding="utf-8")


def _stale(runs: Sequence[Run]) -> list[str]:
    """Say how many runs are not what the present code would do."""
    old = [run for run in runs if run["stale"]]
    if not old:
        return []
    names = ", ".join(_ordered({name_of(run) for run in old}))
    mark = "\\" + STALE
    return [f"Runs of other code: {len(old)} of {len(runs)}, marked {mark} ({names}).\n"]


def _cell(table: Table, cell: tuple[int, int], folder: Path) -> list[str]:
    places = table.of_cell(cell)
    present = [name for name in table.policies if any(table.at(p, name) for p in places)]
    plot = f"ablation-{cell[0]}-{cell[1]}.svg"
    curves = [Curve(_shares(table, places, name), name) for name in present]
    title = f"{cell[0]} volunteers, {cell[1]} stages"
    labels = Labels(title, "mean over seeds", "churn (% per hour)", "share of the oracle")
    (folder / plot).write_text(curves_chart(curves, labels), encoding="utf-8")
    return [
        f"## {title}\n",
        f"![share against churn]({plot})\n",
        *_grid(["share at churn", *_churns(places)], _share_rows(table, places, present)),
        *_details(table, places, present),
    ]


def _shares(table: Table, places: list[Place], name: str) -> list[tuple[float, float]]:
    found = ((place.churn * 100, table.mean(place, name, "share")) for place in places)
    return [(churn, share) for churn, share in found if share is not None]


def _churns(places: list[Place]) -> list[str]:
    return [f"{place.churn:.0%}" for place in places]


def _share_rows(table: Table, places: list[Place], names: list[str]) -> list[list[str]]:
    return [[name, *(_share(table, place, name) for place in places)] for name in names]


def _share(table: Table, place: Place, name: str) -> str:
    shares = [run["figures"]["share"] for run in table.at(place, name)]
    if not shares:
        return ""
    spread = f" ±{statistics.stdev(shares):.2f}" if len(shares) > 1 else ""
    known = reference(place, name)
    beside = "" if known is None else f" ({known:.2f})"
    return f"{statistics.fmean(shares):.3f}{table.mark(place, name)}{spread}{beside}"


def reference(place: Place, name: str) -> float | None:
    """Return the figure to beat, if there is one."""
    row = REFERENCE.get(name, {}).get(place.cell)
    if row is None or place.churn not in REFERENCE_CHURN:
        return None
    return row[REFERENCE_CHURN.index(place.churn)]


DETAILS: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("of LP", "share_lp", "{:.3f}".format),
    ("moves /h", "moves", "{:.2f}".format),
    ("downloads /h", "downloads", "{:.2f}".format),
    ("re-match s", "rematch_median_s", "{:.0f}".format),
    ("p95 s", "rematch_p95_s", "{:.0f}".format),
    ("empty", "empty", "{:.1%}".format),
    ("run s", "wall_s", "{:.1f}".format),
)


def _details(table: Table, places: list[Place], names: list[str]) -> list[str]:
    """Show everything else at 20 % churn, or the highest there is below it."""
    place = max((p for p in places if p.churn <= 0.2), default=places[0])
    heading = [f"at {place.churn:.0%} churn", *(title for title, _, _ in DETAILS)]
    heading += ["letters /h", "records /h", "kB /h"]
    rows = []
    for name in names:
        if not table.at(place, name):
            continue
        means = [(table.mean(place, name, key), show) for _, key, show in DETAILS]
        shown = ["" if value is None else show(value) for value, show in means]
        rows.append([name + table.mark(place, name), *shown, *_talk(table.at(place, name))])
    return _grid(heading, rows)


def _talk(runs: list[Run]) -> list[str]:
    talks = [run["figures"]["talk"] for run in runs if run["figures"]["talk"]]
    if not talks:
        return ["", "", ""]
    letters, records, size = (
        statistics.fmean(talk[key] for talk in talks) for key in ("letters", "records", "bytes")
    )
    return [f"{letters:.0f}", f"{records:.0f}", f"{size / 1000:.0f}"]


def _blocking(table: Table, folder: Path) -> list[str]:
    """Plot the blocking pairs of ours over time, one curve a place, per volunteer."""
    curves = []
    for place in table.places:
        series: dict[float, list[float]] = defaultdict(list)
        for run in table.at(place, "ours"):
            for at_s, pairs in run["figures"]["blocking_pairs"] or []:
                series[at_s].append(pairs / place.volunteers)
        points = [(at_s / 60, statistics.fmean(found)) for at_s, found in sorted(series.items())]
        if points:
            curves.append(Curve(points, f"{place.cell}, {place.churn:.0%}"))
    if not curves:
        return []
    labels = Labels("Blocking pairs", "ours; mean over seeds", "minutes", "pairs per volunteer")
    plot = "ablation-blocking-pairs.svg"
    (folder / plot).write_text(curves_chart(curves, labels), encoding="utf-8")
    return ["## Blocking pairs over time\n", f"![blocking pairs]({plot})\n"]


def _verdict(table: Table) -> list[str]:
    """Say where ours is below its reference or below another decentralised policy."""
    lines = []
    for place in table.places:
        for name in OURS:
            share, known = table.mean(place, name, "share"), reference(place, name)
            if share is None:
                continue
            mark = table.mark(place, name)
            if known is not None and share < known - WITHIN:
                lines.append(f"- {_words(place)}: {name} {share:.3f}{mark}, reference {known:.2f}")
            lines += _better(table, place, name, share)
    if not any(table.at(place, name) for place in table.places for name in OURS):
        return []
    head = "## Where ours is not best, or more than three points below its reference\n"
    return [head, *(lines or ["Nowhere."]), ""]


def _better(table: Table, place: Place, ours: str, share: float) -> list[str]:
    """Name the other decentralised policies, equally charged, that do better."""
    charged = "," not in ours
    others = [n for n in table.policies if not n.startswith("ours") and n != "annealing"]
    found = []
    for name in others:
        other = table.mean(place, name, "share")
        comparable = charged == ("," not in name) or "dual" not in name
        if comparable and other is not None and other > share + 0.0005:
            theirs, mine = table.mark(place, name), table.mark(place, ours)
            figures = f"{name} {other:.3f}{theirs}, {ours} {share:.3f}{mine}"
            found.append(f"- {_words(place)}: {figures}")
    return found


def _words(place: Place) -> str:
    return f"{place.cell} at {place.churn:.0%}"


def _grid(heading: list[str], rows: list[list[str]]) -> list[str]:
    """Return a Markdown table."""
    lines = [heading, ["---"] * len(heading), *rows]
    return [*(f"| {' | '.join(line)} |" for line in lines), ""]
