"""What a second stage costs two volunteers: tokens/s, and the bound that the stages' times allow.

    python -m tests.bench.second_stage [--ways usual,single] [--up 20Mbit/s] [--seconds 180]
                                       [--record]

Preset `small` with context 256, 8 microbatches of 2, two stages, two volunteers of one thread each
on loopback. `usual` is the founder's default, where the matching decides who holds two stages;
`single` has one stage each. The bound is the efficiency model's with both stages timed at the same
moment, before the run and after it; where volunteers hold both stages it includes averaging them.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from pathlib import Path

from client.cli.commands.create import sign, write_swarm_file
from client.cli.founding.manifest import found_swarm
from client.cli.founding.options import ModelChoices, OptimizerChoices, RunChoices
from client.cli.reach.home import free_port
from client.lab.local_swarm import terminate_as_interrupt
from client.store.identity import ensure_identity
from client.store.paths import home_folders, make_private
from protocol.address import Address
from protocol.manifest import Manifest
from tests.bench.figures import add_record_flag, figure, record
from tests.bench.plan_check import FLAGS, HOST, expected, measured_steps

WAYS = {"usual": RunChoices().dual_homing, "single": 0}
MEASURES = ("protocol/matching/averaging.py", "protocol/matching/second.py", "protocol/rounds")


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ways", default="usual,single")
    parser.add_argument("--up", help="upload limit of every volunteer, such as 20Mbit/s")
    parser.add_argument("--seconds", type=float, default=180.0)
    add_record_flag(parser)
    given = parser.parse_args()
    for way in given.ways.split(","):
        with terminate_as_interrupt(), tempfile.TemporaryDirectory(prefix="vol") as folder:
            tokens, bound, steps = measured(Path(folder), WAYS[way], given.up, given.seconds)
        where = given.up or "loopback"
        found = figure(
            "second stages",
            f"86M parameters, two volunteers of one thread, {way}, {where}: tokens/s",
            f"**{tokens:.0f}**, {tokens / bound:.2f} of the bound ({bound:.0f})",
            f"median of {steps} steps, load {os.getloadavg()[0]:.0f}",
            "python -m tests.bench.second_stage",
            MEASURES,
        )
        print(f"{found.what}: {found.value} ({found.spread})", flush=True)
        if given.record:
            record([found])


def measured(
    homes: Path, dual_homing: int, up: str | None, seconds: float
) -> tuple[float, float, int]:
    """Return tokens/s, those of the bound, and how many steps were timed.

    Args:
        homes: a folder for the volunteers.
        dual_homing: percentage of the volunteers that hold two stages.
        up: upload limit of every volunteer.
        seconds: to measure for.
    """
    manifest = found(homes, dual_homing)
    before = expected(manifest, 1, up)
    flags = (*FLAGS, "--upload-limit", up) if up else FLAGS
    intervals = measured_steps(manifest, homes, 1, seconds, flags)
    after = expected(manifest, 1, up)
    tokens = manifest.microbatches_per_step * manifest.tokens_per_microbatch
    bound = tokens / statistics.mean((before.step_s, after.step_s))
    return tokens / statistics.median(intervals), bound, len(intervals)


def found(homes: Path, dual_homing: int) -> Manifest:
    """Found the swarm."""
    founder = ensure_identity(make_private(home_folders(homes / "v0").data))
    run = RunChoices(
        preset="small",
        name="second-stage",
        stages=2,
        steps=100_000,
        sequences=2,
        microbatches=8,
        dual_homing=dual_homing,
        checkpoint_every=1000,
    )
    manifest = found_swarm(
        founder.peer, run, ModelChoices(context=256), OptimizerChoices()
    ).manifest
    swarm = sign(manifest, founder, (Address("ip4", HOST, free_port(HOST), founder.peer),))
    write_swarm_file(homes / "x.swarm", swarm)
    return manifest


if __name__ == "__main__":
    main()
