"""A newcomer takes the state of a stage larger than 3 GB from its only replica, and trains with it.

    python -m tests.bench.large_join [--width 2048] [--layers 6] [--minutes 40] [--record]

One stage of a GPT over bytes, two volunteers with one thread each on loopback. Both run on this
machine and offload to the disk: each needs about 8 bytes of memory and 50 of the disk for a
parameter, so 5 and 30 GB together with the usual width. The first one trains alone; the second
comes after two steps, fetches the state, and has to close a step with the first, at the same hash.
"""

from __future__ import annotations

import argparse
import os
import re
import tempfile
import time
from pathlib import Path

from client.cli.founding.options import ModelChoices, RunChoices
from client.errors import UserError
from client.lab.bench.efficiency import HOST, NAMES, found
from client.lab.local_swarm import LocalSwarm, Member, terminate_as_interrupt
from tests.bench.figures import add_record_flag, figure, record

FLAGS = ("--listen-host", HOST, "--threads", "1", "--offload", "on")
ALONE = 2
"""Steps before the second one comes."""
POLL_S, START_S = 0.5, 300.0
FETCHED = re.compile(r"fetched the state: ([\d.]+) MB in ([\d.]+) s")
MEASURES = ("client/train/stage", "client/train/transfer", "protocol/transfer", "client/compute")


class Watched:
    """What one of them has said."""

    def __init__(self, member: Member) -> None:
        self.member = member
        self.closed: dict[int, tuple[float, str]] = {}
        """By version: when, and the hash."""
        self.fetched: tuple[float, float] | None = None
        """MB and seconds."""
        self.serves_at = 0.0

    def look(self) -> None:
        """Take what is new.

        Raises:
            UserError: it has ended.
        """
        if not self.member.alive:
            raise UserError(self.member.log_tail())
        for event in self.member.new_events():
            if event.kind == "StageVersion" or "hash" in event.data:
                version = event.data.get("version")
                if isinstance(version, int):
                    self.closed[version] = event.time, str(event.data["hash"])
            if said := FETCHED.search(event.words):
                self.fetched = float(said[1]), float(said[2])
            if "serving from version" in event.words:
                self.serves_at = event.time


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--minutes", type=float, default=40.0)
    add_record_flag(parser)
    given = parser.parse_args()
    heads = max(1, given.width // 128)
    model = ModelChoices(layers=given.layers, width=given.width, heads=heads, context=32)
    run = RunChoices(
        name="large",
        stages=1,
        steps=100_000,
        sequences=1,
        microbatches=2,
        redundancy=2,
        dual_homing=0,
        checkpoint_every=100_000,
        measure=False,
    )
    with terminate_as_interrupt(), tempfile.TemporaryDirectory(prefix="vol") as folder:
        homes = Path(folder)
        found(homes, run, model)
        with LocalSwarm(homes / "bench.swarm", homes, homes / "logs") as swarm:
            one = joined(swarm, time.monotonic() + 60 * given.minutes)
            for member in swarm.members:  # nothing of theirs is needed: no orderly end
                member.kill()
    if given.record:
        record([one])


def joined(swarm: LocalSwarm, deadline: float):  # type: ignore[no-untyped-def]
    """Let one train and another join; return the figure."""
    first = Watched(start(swarm, 0))
    wait(deadline, [first], lambda: len(first.closed) >= ALONE)
    alone_s = pace(first)
    came = time.time()
    second = Watched(start(swarm, 1))
    both = [first, second]
    wait(deadline, both, lambda: second.serves_at > 0)
    since = max(second.closed, default=0)
    wait(deadline, both, lambda: max(second.closed.keys() & first.closed.keys(), default=0) > since)
    same = second.closed.keys() & first.closed.keys()
    if any(first.closed[v][1] != second.closed[v][1] for v in same):
        raise UserError(f"they have other hashes of version {min(same)}")
    assert second.fetched is not None
    megabytes, seconds = second.fetched
    one = figure(
        "large models",
        f"a newcomer takes a stage whose state has {megabytes / 1e3:.2f} GB",
        f"fetched in **{seconds:.0f} s**, {8 * megabytes / seconds:.0f} Mbit/s; a replica "
        f"{second.serves_at - came:.0f} s after its start",
        f"one donor, which trains meanwhile, {alone_s:.0f} s a step alone; equal hashes of "
        f"{len(same)} versions; one machine, one thread each; load {os.getloadavg()[0]:.0f}",
        "python -m tests.bench.large_join",
        MEASURES,
    )
    print(f"{one.what}: {one.value} ({one.spread})", flush=True)
    return one


def start(swarm: LocalSwarm, index: int) -> Member:
    """Start a volunteer."""
    member = swarm.start(NAMES[index], FLAGS)
    member.wait_until_it_answers(START_S)
    return member


def pace(watched: Watched) -> float:
    """Return the seconds of the last step."""
    moments = sorted(at for at, _ in watched.closed.values())
    return moments[-1] - moments[-2]


def wait(deadline: float, watched: list[Watched], done) -> None:  # type: ignore[no-untyped-def]
    """Watch until it is done.

    Raises:
        UserError: it takes too long.
    """
    while True:
        for one in watched:
            one.look()
        if done():
            return
        if time.monotonic() > deadline:
            raise UserError("\n".join(one.member.log_tail() for one in watched))
        time.sleep(POLL_S)


if __name__ == "__main__":
    main()
