"""Whether a change costs speed: two checkouts of this program, in turns, on the same work.

    python -m tests.bench.revisions --before DIR [--after .] [--rounds 5] [--steps 80]
                                    [--record]

Each checkout has its own ``.venv`` (``make install``). In every round both run once, in alternating
order: a swarm of two stages with one volunteer each, real processes on this machine, one thread
each. Only the command line is used, so any two versions can be compared. A run gives the swarm's
tokens/s between two steps and the CPU seconds that both nodes (without their workers) spent for a
thousand microbatches in the meantime. The ratios after / before are taken within each round.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import psutil

from tests.bench.figures import Figure, add_record_flag, figure, record
from tests.bench.machines import this_machine

MICROBATCHES = 16
TOKENS = 8192
"""Tokens of a step: 16 microbatches of 4 sequences of 128 tokens."""
WARM_STEPS = 10
TOO_LONG_S = 300.0


@dataclass(frozen=True, slots=True)
class Run:
    """The speed of one swarm of one checkout."""

    tokens_per_s: float
    node_cpu_s: float
    """Of both nodes together, for a thousand microbatches of the swarm."""


@dataclass(frozen=True, slots=True)
class Round:
    """Both checkouts, one after the other."""

    before: Run
    after: Run
    machine: str


def main() -> None:
    """Run and print; every round is appended to ``--out`` where that is given."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", type=Path, required=True)
    parser.add_argument("--after", type=Path, default=Path())
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--out", type=Path)
    add_record_flag(parser)
    asked = parser.parse_args()
    programs = [program_of(asked.before), program_of(asked.after)]
    rounds: list[Round] = []
    for number in range(asked.rounds):
        order = (0, 1) if number % 2 == 0 else (1, 0)
        runs = {index: measure(programs[index], asked.steps) for index in order}
        rounds.append(Round(runs[0], runs[1], this_machine()))
        print(rounds[-1], flush=True)
        if asked.out:
            with asked.out.open("a") as file:
                file.write(json.dumps(asdict(rounds[-1])) + "\n")
    print(summary(rounds))
    if asked.record:
        record(figures(rounds, asked.before))


def ratios_of(rounds: list[Round]) -> dict[str, list[float]]:
    """Return the ratios after / before by what is compared."""
    return {
        "tokens/s": [x.after.tokens_per_s / x.before.tokens_per_s for x in rounds],
        "node CPU s per 1,000 microbatches": [
            x.after.node_cpu_s / x.before.node_cpu_s for x in rounds
        ],
    }


def summary(rounds: list[Round]) -> str:
    """Say the median ratios after / before and their range."""
    return "\n".join(
        f"{name}: after / before {median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f}), "
        f"{len(rounds)} rounds"
        for name, ratios in ratios_of(rounds).items()
    )


def figures(rounds: list[Round], before: Path) -> list[Figure]:
    """Return the rows of the page; ``before``: the older checkout."""
    head = ["git", "-C", str(before), "rev-parse", "--short", "HEAD"]
    older = subprocess.run(head, capture_output=True, text=True, check=True).stdout.strip()
    return [
        figure(
            "speed of training",
            f"{name} of 2 x 1 over those of an earlier version, in turns",
            f"**{median(ratios):.2f} x** those of `{older}`",
            f"{min(ratios):.2f}-{max(ratios):.2f}, {len(rounds)} rounds",
            "python -m tests.bench.revisions --before DIR",
            ("client", "model_zoo", "protocol"),
        )
        for name, ratios in ratios_of(rounds).items()
    ]


def program_of(checkout: Path) -> Path:
    """Return a checkout's command, or end with what to do."""
    program = checkout.resolve() / ".venv/bin/volunteer"
    if not program.exists():
        sys.exit(f"{checkout} has no .venv: run make install there first")
    return program


def measure(program: Path, steps: int) -> Run:
    """Run one swarm for ``steps`` steps after the first ones."""
    with tempfile.TemporaryDirectory(prefix="vol") as folder:
        homes = [Path(folder) / name for name in ("one", "two")]
        swarm = Path(folder) / "bench.swarm"
        flags = ("--out", str(swarm), "--microbatches", str(MICROBATCHES), "--microbatch", "4")
        flags += ("--stages", "2", "--steps", "100000", "--dual-homing", "0", "--redundancy", "1")
        flags += ("--announce", "/ip4/127.0.0.1/tcp/4001", "--no-measure")
        call(program, homes[0], "create", *flags)
        with running(program, homes, swarm) as nodes:
            begun = wait_for_step(program, homes[0], WARM_STEPS)
            spent = sum(map(cpu_seconds, nodes))
            ended = wait_for_step(program, homes[0], begun[1] + steps)
            spent = sum(map(cpu_seconds, nodes)) - spent
    done = ended[1] - begun[1]
    return Run(
        tokens_per_s=round(done * TOKENS / (ended[0] - begun[0]), 1),
        node_cpu_s=round(spent / (done * MICROBATCHES) * 1000, 3),
    )


@contextmanager
def running(program: Path, homes: list[Path], swarm: Path) -> Iterator[list[psutil.Process]]:
    """Start a volunteer in every home; none is left afterwards. Yields the nodes' processes."""
    join = ("join", "--swarm", str(swarm), "--detach", "--yes", "--threads", "1")
    nodes: list[psutil.Process] = []
    try:
        call(program, homes[0], *join, "--listen-host", "127.0.0.1", "--listen-port", "4001")
        call(program, homes[1], *join, "--listen-host", "127.0.0.1")
        nodes = [psutil.Process(pid_of(program, home)) for home in homes]
        yield nodes
    finally:
        for home in homes:
            call(program, home, "stop", check=False)
        psutil.wait_procs(nodes, timeout=60.0)


def call(program: Path, home: Path, *arguments: str, check: bool = True) -> str:
    """Run one command in one home and return what it prints."""
    environment = os.environ | {"VOLUNTEER_HOME": str(home)}
    done = subprocess.run(
        [program, *arguments], env=environment, check=check, capture_output=True, text=True
    )
    return done.stdout


def wait_for_step(program: Path, home: Path, step: int) -> tuple[float, int]:
    """Return when the swarm was first seen at a step or beyond it, and which one that was."""
    end = time.monotonic() + TOO_LONG_S
    while time.monotonic() < end:
        seen = json.loads(call(program, home, "status", "--json"))["step"]
        if seen >= step:
            return time.monotonic(), seen
        time.sleep(1.0)
    raise TimeoutError(f"step {step} not reached in {TOO_LONG_S:g} s")


def pid_of(program: Path, home: Path) -> int:
    """Return the process id of a home's node."""
    return int(json.loads(call(program, home, "status", "--json"))["pid"])


def cpu_seconds(node: psutil.Process) -> float:
    """Return the CPU time that a process, without its children, has spent."""
    times = node.cpu_times()
    return times.user + times.system


if __name__ == "__main__":
    main()
