"""Measures the cost of signatures: the share of the nodes' CPU in a training swarm of 2 x 2.

    python -m tests.bench.evidence [--seconds 30] [--json]

Four volunteers with the demo's model and the rules of a public swarm on this machine, so that they
sign what they commit to and each segment, too. The worker's CPU is not counted: it would
make the share smaller. Bound: 2 % of the node's CPU (``MOST``); exit status 1 above it.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from client.cli.commands.create import sign, write_swarm_file
from client.cli.founding.manifest import found_swarm
from client.cli.founding.options import (
    ModelChoices,
    OptimizerChoices,
    RunChoices,
    for_strangers,
)
from client.cli.reach.home import free_port
from client.lab.local_swarm import LocalSwarm, Member, terminate_as_interrupt
from client.store.identity import ensure_identity
from client.store.paths import home_folders, make_private
from protocol.address import Address
from tests.bench.evidence_node import COST

HOST = "127.0.0.1"
NAMES = ("v1", "v2", "v3", "v4")
FLAGS = ("--listen-host", HOST, "--threads", "1", "--seats", "1")
REPOSITORY = Path(__file__).parents[2]
START_S = 150.0
WARM_STEPS = 3
MOST = 0.02


def main() -> int:
    """Measure and print; 1 if it costs more than it may."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with terminate_as_interrupt(), tempfile.TemporaryDirectory(prefix="evd") as folder:
        found = measure(Path(folder), arguments.seconds)
    if arguments.json:
        print(json.dumps(found))
    else:
        for name, value in found.items():
            print(f"{name:32}{value}")
    return int(found["share of node CPU"] > MOST)


def measure(homes: Path, seconds: float) -> dict[str, Any]:
    """Train for so long; return what the signatures of all four cost together."""
    founder = ensure_identity(make_private(home_folders(homes / NAMES[0]).data))
    run = RunChoices(name="evidence", steps=1_000_000, checkpoint_every=50, dual_homing=0)
    public = for_strangers(run)
    manifest = found_swarm(founder.peer, public, ModelChoices(), OptimizerChoices()).manifest
    swarm = sign(manifest, founder, (Address("ip4", HOST, free_port(HOST), founder.peer),))
    write_swarm_file(homes / "x.swarm", swarm)
    with LocalSwarm(homes / "x.swarm", homes, homes / "logs") as processes:
        members = [_start(processes, NAMES[0], homes)]
        members[0].wait_until_it_answers(60.0)
        members += [_start(processes, name, homes) for name in NAMES[1:]]
        begin = _wait_for_step(members, 1) + WARM_STEPS
        _wait_for_step(members, begin)
        steps, before = _step(members), [_newest(homes / f"{name}.cost") for name in NAMES]
        time.sleep(seconds)
        steps = _step(members) - steps
        after = [_newest(homes / f"{name}.cost") for name in NAMES]
        for member in members:
            member.kill()
    return _sums(before, after, steps)


def _start(processes: LocalSwarm, name: str, homes: Path) -> Member:
    return processes.start(
        name,
        FLAGS,
        variables={COST: str(homes / f"{name}.cost"), "PYTHONPATH": str(REPOSITORY)},
        within=[sys.executable, "-m", "tests.bench.evidence_node"],
    )


def _step(members: list[Member]) -> int:
    return max((look.step for member in members if (look := member.snapshot())), default=0)


def _wait_for_step(members: list[Member], step: int) -> int:
    deadline = time.monotonic() + START_S
    while (now := _step(members)) < step:
        if time.monotonic() > deadline:
            raise SystemExit(f"no step {step} in {START_S:.0f} s: {members[0].log_tail(5)}")
        time.sleep(0.5)
    return now


def _newest(file: Path) -> dict[str, Any]:
    line: dict[str, Any] = json.loads(file.read_text().splitlines()[-1])
    return line


def _sums(before: list[dict[str, Any]], after: list[dict[str, Any]], steps: int) -> dict[str, Any]:
    def grown(key: str, part: str = "") -> float:
        pairs = zip(before, after, strict=True)
        if not part:
            return sum(b[key] - a[key] for a, b in pairs)
        return sum(b[key].get(part, 0) - a[key].get(part, 0) for a, b in pairs)

    parts = sorted({part for line in after for part in line["spent"]})
    spent = sum(grown("spent", part) for part in parts)
    found: dict[str, Any] = {"steps": steps, "node CPU s, all four": round(grown("cpu"), 2)}
    for part in parts:
        found[f"{part}: calls, ms of CPU"] = [
            int(grown("times", part)),
            round(1000 * grown("spent", part), 1),
        ]
    return found | {"share of node CPU": round(spent / grown("cpu"), 5)}


if __name__ == "__main__":
    sys.exit(main())
