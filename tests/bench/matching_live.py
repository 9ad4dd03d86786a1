"""The matching on real sockets: eight volunteers of three speeds, four stages; two die, two come.

    python -m tests.bench.matching_live [--runs 3] [--seconds 90] [--json] [--out FOLDER]

Every volunteer is a process of its own with its workers in further ones, as ``volunteer join``
starts them; they talk TCP on loopback. Speeds are made with ``--compute-share``. Capacity is
measured once and given to all: eight measurements at the same time on a few cores would measure
each other.

Measured: (a) cold start, (b) throughput against the best assignment of homes over measured rates,
(c) the time until everything is in place again after two were killed and two came. Results are
appended to ``results/matching_live.jsonl`` and a line to ``results/matching_live.md``.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from client.cli.commands.create import sign, write_swarm_file
from client.cli.founding.manifest import found_swarm
from client.cli.founding.options import ModelChoices, OptimizerChoices, RunChoices
from client.cli.reach.home import free_port
from client.lab.local_swarm import LocalSwarm, terminate_as_interrupt
from client.store.identity import ensure_identity
from client.store.paths import home_folders, make_private
from client.train.machine.capacity import FILE_NAME
from protocol.address import Address
from protocol.manifest import Manifest
from tests.bench.matching_optimum import best_homes, homes_level, shared_level
from tests.bench.matching_watch import Watch

HOST = "127.0.0.1"
STAGES = 4
SHARES = {f"v{i}": share for i, share in enumerate((40, 40, 40, 20, 20, 20, 10, 10), start=1)}
"""Percent of the time that each volunteer may compute."""
NEWCOMERS = {"v9": 40, "v10": 10}
START_S = 180.0
MATCH_S = 120.0
TWICE_WITHIN_S = 300.0
RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Result:
    """One run. Times in seconds, rates in microbatches per second, speeds in tokens per second."""

    cores: int
    load: float
    """Mean load of the machine when the run ended."""
    scale: float
    """The shares were multiplied by this: the machine has to carry their sum."""
    launch_to_joined_s: float
    """Until the last one was known to another."""
    joined_to_started_s: float
    """Until every stage was covered; negative: before the last one came."""
    joined_to_matched_s: float
    """Until all were told their stage for good."""
    joined_to_serving_s: float
    """Until all serve and every stage has two."""
    launch_to_serving_s: float
    best_level: float
    """Lowest stage of the best assignment of homes over measured rates."""
    homes_share: float
    """Lowest stage of the match's homes against that."""
    shared_share: float
    """The same with second seats."""
    tokens_per_s: float
    tokens_share: float
    """Against ``best_level``."""
    kill_to_matched_s: float
    joined_to_rematched_s: float
    """From the moment that the last newcomer was known (and the two were dead)."""
    empty_seen: int
    """Looks at which a stage that had been covered had no replica."""
    moved_twice: list[str]
    """Within five minutes."""
    counted_twice: int
    seats: dict[str, list[int | None]]


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=90.0)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--logs", type=Path, help="keep the volunteers' logs here")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    results = []
    for number in range(arguments.runs):
        with terminate_as_interrupt(), tempfile.TemporaryDirectory(prefix="vol") as folder:
            try:
                result = measure(Path(folder), arguments.seconds, arguments.scale)
            finally:
                if arguments.logs:
                    logs = arguments.logs / str(number)
                    shutil.copytree(Path(folder) / "logs", logs, dirs_exist_ok=True)
        results.append(result)
        _append(arguments.out / "matching_live.jsonl", json.dumps(asdict(result)))
        print(json.dumps(asdict(result)) if arguments.json else _table(result), flush=True)
    _append(arguments.out / "matching_live.md", markdown(results))
    print(markdown(results))


def measure(homes: Path, seconds: float, scale: float) -> Result:
    """Perform one run."""
    manifest = found(homes)
    with LocalSwarm(homes / "x.swarm", homes, homes / "logs") as swarm:
        watch = Watch(swarm, STAGES)
        launched = start_all(watch, homes, scale)
        joined = max(watch.joined(name) or 0.0 for name in SHARES)
        serving = watch.until(watch.is_matched, "cold start", MATCH_S)
        matched = max(held[0][0] for held in watch.held_at.values())
        started = watch.started_at or matched
        watch.watch(seconds / 3)  # the first steps, second seats, the first corrections
        begin = time.time()
        watch.watch(seconds)
        rates = measured_rates(watch, scale)
        best, _ = best_homes([rates[name] for name in sorted(rates)])
        seats = watch.seats()
        speed = watch.tokens_per_s(begin) or 0.0
        killed, rejoined, rematched = kill_and_add(watch, homes, scale)
        watch.watch(10.0)
        counted = [s.counters.doubled_microbatches for s in watch.last.values()]
        return Result(
            cores=os.cpu_count() or 0,
            load=round(os.getloadavg()[0], 1),
            scale=scale,
            launch_to_joined_s=round(joined - launched, 2),
            joined_to_started_s=round(started - joined, 2),
            joined_to_matched_s=round(matched - joined, 2),
            joined_to_serving_s=round(serving - joined, 2),
            launch_to_serving_s=round(serving - launched, 2),
            best_level=round(best, 3),
            homes_share=round(homes_level(rates, seats) / best, 3),
            shared_share=round(shared_level(rates, seats) / best, 3),
            tokens_per_s=round(speed, 1),
            tokens_share=round(speed / (best * manifest.tokens_per_microbatch), 3),
            kill_to_matched_s=round(rematched - killed, 2),
            joined_to_rematched_s=round(rematched - max(rejoined, killed), 2),
            empty_seen=len(watch.empty),
            moved_twice=[n for n, count in watch.moves(TWICE_WITHIN_S).items() if count > 1],
            counted_twice=sum(counted),
            seats={name: [place.home, place.second] for name, place in sorted(seats.items())},
        )


def found(homes: Path) -> Manifest:
    """Found a swarm of four stages whose steps are long against what a step costs besides."""
    founder = ensure_identity(make_private(home_folders(homes / "v1").data))
    run = RunChoices(name="live", stages=STAGES, steps=100_000, sequences=4, microbatches=192)
    model = ModelChoices(layers=STAGES, width=128, heads=4, context=128)
    manifest = found_swarm(founder.peer, run, model, OptimizerChoices()).manifest
    swarm = sign(manifest, founder, (Address("ip4", HOST, free_port(HOST), founder.peer),))
    write_swarm_file(homes / "x.swarm", swarm)
    return manifest


def start_all(watch: Watch, homes: Path, scale: float) -> float:
    """Start everybody and wait until the last is known; return when the first was launched."""
    launched = time.time()
    first, *others = SHARES
    watch.swarm.start(first, flags(SHARES[first], scale))
    watch.until(lambda: capacity_file(homes, first).exists(), "capacity", START_S)
    for name in others:
        start(watch, homes, name, SHARES[name], scale)
    everybody = lambda: all(watch.joined(name) for name in SHARES)  # noqa: E731
    watch.until(everybody, "joining", START_S)
    return launched


def start(watch: Watch, homes: Path, name: str, share: int, scale: float) -> None:
    """Start one volunteer on the machine that the first one has measured."""
    kept = capacity_file(homes, name)
    make_private(kept.parent)
    shutil.copyfile(capacity_file(homes, "v1"), kept)
    watch.swarm.start(name, flags(share, scale))


def kill_and_add(watch: Watch, homes: Path, scale: float) -> tuple[float, float, float]:
    """Kill a fast and a slow volunteer of different stages, start two; return the moments.

    Returns:
        When they were killed, when the last newcomer was known, when everything is in place.
    """
    seats = watch.seats()
    fast, slow = next(
        (fast, slow)
        for fast in ("v2", "v3", "v1")
        for slow in ("v8", "v7", "v6", "v5", "v4")
        if seats[fast].home != seats[slow].home
    )
    members = {member.name: member for member in watch.alive()}
    members[slow].kill()
    killed = members[fast].kill()
    for name in (fast, slow):
        watch.homes.pop(name, None)
    for name, share in NEWCOMERS.items():
        start(watch, homes, name, share, scale)
    watch.until(lambda: all(watch.joined(name) for name in NEWCOMERS), "newcomers", START_S)
    rejoined = max(watch.joined(name) or 0.0 for name in NEWCOMERS)
    return killed, rejoined, watch.until(watch.is_matched, "re-match", MATCH_S)


def measured_rates(watch: Watch, scale: float) -> dict[str, list[float]]:
    """Return what every volunteer would reach at every stage.

    A stage's speed on this machine is the median over those that served it of measured rate per
    share of time; a volunteer gets its share of it.
    """
    speeds = []
    for stage in range(STAGES):
        seen = [
            rate / SHARES[name]
            for (name, where), rate in watch.rates.items()
            if where == stage and name in SHARES
        ]
        speeds.append(statistics.median(seen))
    return {name: [share * speed for speed in speeds] for name, share in SHARES.items()}


def flags(share: int, scale: float) -> tuple[str, ...]:
    """Return the command line of a volunteer."""
    percent = max(1, round(share * scale))
    return ("--listen-host", HOST, "--threads", "1", "--compute-share", str(percent))


def capacity_file(homes: Path, name: str) -> Path:
    """Return where a volunteer keeps what it has measured of its machine."""
    return home_folders(homes / name).data / FILE_NAME


def markdown(results: list[Result]) -> str:
    """Return one line of a Markdown table: medians over the runs."""
    middle = {
        name: statistics.median(asdict(result)[name] for result in results)
        for name, value in asdict(results[0]).items()
        if isinstance(value, int | float)
    }
    return "| " + " | ".join([str(len(results)), *(_cell(middle, name) for name in COLUMNS)]) + " |"


COLUMNS = (
    "cores",
    "joined_to_started_s",
    "joined_to_matched_s",
    "joined_to_serving_s",
    "launch_to_serving_s",
    "homes_share",
    "shared_share",
    "tokens_share",
    "kill_to_matched_s",
    "joined_to_rematched_s",
    "empty_seen",
    "counted_twice",
)


LEGEND = """# The matching on real sockets

Written by `python -m tests.bench.matching_live`: a line per call, medians over its runs; every run
is a line of `matching_live.jsonl`, with the load of the machine. Seconds count from the moment that
the last volunteer was known to another (`joined`), from the first launch, or from the kill; those
from launch and kill include the start of processes. `homes_share` and `shared_share` are the lowest
stage of the match without and with second seats, `tokens_share` is the speed of training, all three
against the lowest stage of the best assignment of homes (exhaustive search over measured rates).
"""


def _cell(figures: Mapping[str, float], name: str) -> str:
    return f"{figures[name]:g}"


def _table(result: Result) -> str:
    return "\n".join(f"{name:24} {value}" for name, value in asdict(result).items())


def _append(path: Path, line: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() and path.suffix == ".md":
        head = "| " + " | ".join(("runs", *COLUMNS)) + " |"
        line = f"{LEGEND}\n{head}\n|{'---|' * (len(COLUMNS) + 1)}\n{line}"
    with path.open("a") as file:
        file.write(line + "\n")


if __name__ == "__main__":
    main()
