"""The ablation of the matching: every policy in the same worlds, cell by cell.

Run: python -m tests.bench.ablation [--cells 50/8,500/32] [--churn 0,20] [--seeds 3] [--hours 3]
     [--policies ours,random] [--jobs 1] [--accept-old] [--report-only]

A cell is n/S; every world (cell, churn, seed) is drawn once and shown to all policies. Finished
runs are kept as lines of results/ablation.jsonl and reused, so an interrupted run goes on where it
was; a run counts as finished only for the code it was made with, unless --accept-old. Then the
report is written: results/ablation.md and the plots beside it. Runs of other code stay in it until
they are run again, and are marked.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from client.lab.simulate.market.catalogue import DESIGNS, POLICIES
from client.lab.simulate.market.compare import compare
from client.lab.simulate.market.nature import draw
from client.lab.simulate.market.score import Figures
from client.lab.simulate.market.setting import Setting
from tests.bench.ablation_report import write_report

RESULTS = Path(__file__).parent / "results"
REPOSITORY = Path(__file__).parents[2]
CELLS = ("50/8", "50/32", "500/8", "500/32", "5000/32")
CHURN_PERCENT = ("0", "5", "20", "50")
FREE = ("ours", "value-join-dual", "petals-dual")
"""Policies that are also shown without the charge for averaging a second stage."""

MARKET_CODE = ("client/lab/simulate/agenda.py", "client/lab/simulate/market/**/*.py")
MACHINE_CODE = ("protocol/matching/**/*.py",)


@dataclass(frozen=True)
class World:
    """One world and who has yet to act in it."""

    setting: Setting
    policies: tuple[str, ...]


def code_digest(policy: str) -> str:
    """Return what identifies the code that a policy's figures depend on."""
    patterns = MARKET_CODE + (MACHINE_CODE if policy in DESIGNS else ())
    paths = sorted(path for pattern in patterns for path in REPOSITORY.glob(pattern))
    found = hashlib.blake2b(digest_size=8)
    for path in paths:
        if policy in DESIGNS or path.name not in ("crowd.py", "stability.py"):
            found.update(path.read_bytes())
    return found.hexdigest()


def key_of(setting: Setting, policy: str) -> str:
    """Return the name of one run."""
    return json.dumps([policy, *msgspec.to_builtins(setting).values()])


def finished(path: Path, *, accept_old: bool) -> dict[str, dict[str, Any]]:
    """Return the runs that are kept, the newest of each name."""
    if not path.exists():
        return {}
    found: dict[str, dict[str, Any]] = {}
    codes = {policy: code_digest(policy) for policy in POLICIES}
    for line in path.read_text(encoding="utf-8").splitlines():
        run = json.loads(line)
        if accept_old or run["code"] == codes.get(run["figures"]["policy"]):
            found[run["key"]] = run
    return found


def reported(path: Path) -> list[dict[str, Any]]:
    """Return all runs, each as the present code made it or else the newest, marked ``stale``."""
    present = finished(path, accept_old=False)
    every = finished(path, accept_old=True) | present
    return [{**run, "stale": key not in present} for key, run in every.items()]


def worlds(arguments: argparse.Namespace, done: dict[str, dict[str, Any]]) -> Iterator[World]:
    """Yield every world in which a run is missing, small ones first."""
    for cell in arguments.cells:
        volunteers, stages = map(int, cell.split("/"))
        for seed in range(arguments.seeds):
            for percent in arguments.churn:
                for charged in (True, False):
                    churn, hours = float(percent) / 100, arguments.hours
                    setting = Setting(volunteers, stages, churn, hours, seed, charged)
                    asked = arguments.policies if charged else _both(arguments.policies)
                    missing = tuple(p for p in asked if key_of(setting, p) not in done)
                    if missing:
                        yield World(setting, missing)


def _both(policies: Sequence[str]) -> list[str]:
    return [policy for policy in policies if policy in FREE]


def simulate(world: World) -> list[Figures]:
    """Run what is missing in a world (a task of a process pool)."""
    return list(compare(draw(world.setting), world.policies))


def keep(path: Path, world: World, found: Sequence[Figures]) -> None:
    """Append finished runs."""
    with path.open("a", encoding="utf-8") as out:
        for figures in found:
            # The series over time would be most of the file, and is not reported.
            figures = msgspec.structs.replace(figures, series=[])
            run = {
                "key": key_of(world.setting, figures.policy),
                "code": code_digest(figures.policy),
                "setting": msgspec.to_builtins(world.setting),
                "figures": msgspec.to_builtins(figures),
            }
            out.write(json.dumps(run) + "\n")


def run_all(arguments: argparse.Namespace, path: Path) -> None:
    """Run every missing world and keep what comes out."""
    missing = list(worlds(arguments, finished(path, accept_old=arguments.accept_old)))
    with ProcessPoolExecutor(arguments.jobs) as pool:
        for number, (world, found) in enumerate(
            zip(missing, pool.map(simulate, missing), strict=True), start=1
        ):
            keep(path, world, found)
            shares = ", ".join(f"{figures.policy} {figures.share:.2f}" for figures in found)
            setting = world.setting
            print(
                f"[{number}/{len(missing)}] {setting.volunteers}/{setting.stages} "
                f"{setting.churn:.0%} seed {setting.seed}: {shares}",
                file=sys.stderr,
                flush=True,
            )


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options; a wrong policy or cell ends the program with an explanation."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--cells", type=_several, default=list(CELLS))
    parser.add_argument("--churn", type=_several, default=list(CHURN_PERCENT))
    parser.add_argument("--policies", type=_several, default=list(POLICIES))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--hours", type=float, default=3.0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--accept-old", action="store_true", help="reuse runs of other code")
    parser.add_argument("--report-only", action="store_true")
    parser.add_argument("--results", type=Path, default=RESULTS)
    found = parser.parse_args(arguments)
    unknown = [policy for policy in found.policies if policy not in POLICIES]
    if unknown:
        parser.error(f"no such policy: {', '.join(unknown)}; choose from {', '.join(POLICIES)}")
    return found


def _several(text: str) -> list[str]:
    return text.split(",")


def main(given: Sequence[str] | None = None) -> None:
    """Run what is missing and write the report."""
    arguments = parse(given)
    arguments.results.mkdir(parents=True, exist_ok=True)
    path = arguments.results / "ablation.jsonl"
    if not arguments.report_only:
        run_all(arguments, path)
    write_report(arguments.results, reported(path))


if __name__ == "__main__":
    main()
