"""Does a swarm learn as well as one process? nanoGPT's CPU recipe in a 2 x 2 swarm with S8.

    python -m tests.bench.learning TEXT [--steps N] [--json]

TEXT is any plain text; the published figures are for tinyshakespeare. Four volunteers in processes
of their own on loopback; prints the held-out loss, the speed, and what was mended on the way.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

from client.cli.commands.create import sign, write_swarm_file
from client.cli.founding.manifest import found_swarm
from client.cli.founding.options import ModelChoices, OptimizerChoices, RunChoices
from client.cli.models.model_source import held_out_loss, load_newest
from client.cli.reach.home import free_port
from client.lab.local_swarm import LocalSwarm, Member, terminate_as_interrupt
from client.store.identity import ensure_identity
from client.store.paths import home_folders, make_private
from model_zoo.datasets.corpus import open_source
from protocol.address import Address

HOST = "127.0.0.1"
NAMES = ("volunteer-1", "volunteer-2", "volunteer-3", "volunteer-4")
TIMEOUT_S = 3600.0


def main() -> None:
    """Run the recipe and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text", type=Path)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--microbatches", type=int, default=4)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with terminate_as_interrupt(), tempfile.TemporaryDirectory(prefix="volunteer-") as folder:
        result = learn(Path(folder), arguments.text, arguments.steps, arguments.microbatches)
    if arguments.json:
        print(json.dumps(result))
    else:
        for name, value in result.items():
            print(f"{name:24} {value}")


def learn(homes: Path, text: Path, steps: int, microbatches: int) -> dict[str, object]:
    """Train the recipe in a swarm of four; 12 sequences per step in equal microbatches."""
    founder = ensure_identity(make_private(home_folders(homes / NAMES[0]).data))
    run = RunChoices(
        preset="nanogpt",
        name="learning",
        data=str(text.absolute()),
        steps=steps,
        sequences=12 // microbatches,
        microbatches=microbatches,
        checkpoint_every=steps,
        dual_homing=False,
    )
    manifest = found_swarm(founder.peer, run, ModelChoices(), OptimizerChoices()).manifest
    swarm = sign(manifest, founder, (Address("ip4", HOST, free_port(HOST), founder.peer),))
    write_swarm_file(homes / "x.swarm", swarm)
    begin = time.monotonic()
    flags = ("--listen-host", HOST, "--threads", "1", "--data", str(text.absolute()))
    with LocalSwarm(homes / "x.swarm", homes, homes / "logs") as processes:
        members = [processes.start(NAMES[0], flags)]
        members[0].wait_until_it_answers(60.0)
        members += [processes.start(name, flags) for name in NAMES[1:]]
        speed = _until_done(members)
        mended = sum(s.counters.rerouted_microbatches for m in members if (s := m.snapshot()))
        doubled = sum(s.counters.doubled_microbatches for m in members if (s := m.snapshot()))
    trained = load_newest(swarm, [home_folders(homes / n).checkpoints(swarm.swarm) for n in NAMES])
    return {
        "steps": trained.version,
        "held_out_loss": round(held_out_loss(trained, open_source(str(text))), 4),
        "tokens_per_s": round(speed),
        "seconds": round(time.monotonic() - begin),
        "rerouted": mended,
        "counted_twice": doubled,
    }


def _until_done(members: list[Member]) -> float:
    """Wait for the last step; return the median of the speeds seen."""
    deadline = time.monotonic() + TIMEOUT_S
    speeds = []
    while time.monotonic() < deadline:
        now = [member.snapshot() for member in members]
        if all(snapshot is not None and snapshot.state == "done" for snapshot in now):
            break
        for member in members:
            if not member.alive:
                raise SystemExit(f"{member.name} ended:\n{member.log_tail(20)}")
        speeds += [s.tokens_per_s for s in now[:1] if s is not None and s.tokens_per_s > 0]
        time.sleep(1.0)
    else:
        raise SystemExit("not done in time")
    return sorted(speeds)[len(speeds) // 2] if speeds else 0.0


if __name__ == "__main__":
    main()
