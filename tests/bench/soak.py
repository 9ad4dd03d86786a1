"""Is the node's memory flat? A 2 x 2 swarm at work for a while, resident memory sampled.

    python -m tests.bench.soak [--seconds 600] [--every 20] [--json]

Prints, per volunteer, the resident memory of node and worker after the first minute, at the end and
at most, and the steps trained meanwhile. Shared-memory rings are part of the figures.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from client.cli.commands.create import sign, write_swarm_file
from client.cli.founding.manifest import found_swarm
from client.cli.founding.options import ModelChoices, OptimizerChoices, RunChoices
from client.cli.reach.home import free_port
from client.lab.local_swarm import LocalSwarm, Member, terminate_as_interrupt
from client.store.identity import ensure_identity
from client.store.paths import home_folders, make_private
from protocol.address import Address

HOST = "127.0.0.1"
NAMES = ("volunteer-1", "volunteer-2", "volunteer-3", "volunteer-4")
FLAGS = ("--listen-host", HOST, "--threads", "1")
WARM_UP_S = 60.0
MIB = 2**20


@dataclass
class Track:
    """Resident memory of one volunteer over time, in bytes."""

    node: list[int] = field(default_factory=list)
    worker: list[int] = field(default_factory=list)
    step: int = 0


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--every", type=float, default=20.0)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with terminate_as_interrupt(), tempfile.TemporaryDirectory(prefix="volunteer-") as folder:
        tracks = soak(Path(folder), arguments.seconds, arguments.every)
    rows = {name: _row(track) for name, track in tracks.items()}
    if arguments.json:
        print(json.dumps(rows))
        return
    for name, row in rows.items():
        print(name, "  ".join(f"{key} {value}" for key, value in row.items()))


def soak(homes: Path, seconds: float, every_s: float) -> dict[str, Track]:
    """Train for ``seconds`` after a warm-up and sample."""
    founder = ensure_identity(make_private(home_folders(homes / NAMES[0]).data))
    run = RunChoices(name="soak", steps=1_000_000, checkpoint_every=50, dual_homing=0)
    manifest = found_swarm(founder.peer, run, ModelChoices(), OptimizerChoices()).manifest
    swarm = sign(manifest, founder, (Address("ip4", HOST, free_port(HOST), founder.peer),))
    write_swarm_file(homes / "x.swarm", swarm)
    tracks = {name: Track() for name in NAMES}
    with LocalSwarm(homes / "x.swarm", homes, homes / "logs") as processes:
        members = [processes.start(NAMES[0], FLAGS)]
        members[0].wait_until_it_answers(60.0)
        members += [processes.start(name, FLAGS) for name in NAMES[1:]]
        time.sleep(WARM_UP_S)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for member in members:
                _sample(member, tracks[member.name])
            time.sleep(every_s)
    return tracks


def _sample(member: Member, track: Track) -> None:
    if not member.alive:
        raise SystemExit(f"{member.name} ended:\n{member.log_tail(20)}")
    now = member.snapshot()
    if now is not None:
        track.node.append(now.rss_bytes)
        track.worker.append(now.worker.rss_bytes)
        track.step = now.step


def _row(track: Track) -> dict[str, object]:
    return {
        "node_first_mib": round(track.node[0] / MIB),
        "node_last_mib": round(track.node[-1] / MIB),
        "node_most_mib": round(max(track.node) / MIB),
        "worker_last_mib": round(track.worker[-1] / MIB),
        "steps": track.step,
    }


if __name__ == "__main__":
    main()
