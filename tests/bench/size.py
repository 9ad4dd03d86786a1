"""What a step costs each volunteer as the swarm grows: messages and bytes, by real processes.

    python -m tests.bench.size [--shapes 2x1,2x2,2x4,4x1,4x2,4x4,8x1,8x2,8x4] [--steps 40]
                               [--out tests/bench/results]

A GPT of 8 layers, width 128, context 64; stages x replicas volunteers on loopback, each with eight
microbatches of 4 sequences per step, whatever the number of replicas. Tensors (boundaries, and
averaging where there are siblings) are told from the rest: receipts, ledgers, rounds, heartbeats,
gossip, framing, encryption. All share the cores here, so a step takes as many times longer as there
are more of them, which it does not where each brings its own; and heartbeats go out every second to
every link. So the messages are given without these, too. There are links among all here: they are
up to 64 volunteers.

Writes ``size.jsonl`` and ``size.md``. 32 volunteers take about 14 GB.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from client.cli.commands.create import sign, write_swarm_file
from client.cli.founding.manifest import found_swarm
from client.cli.founding.options import ModelChoices, OptimizerChoices, RunChoices
from client.cli.reach.home import free_port
from client.control.snapshot import Snapshot
from client.lab.local_swarm import LocalSwarm, terminate_as_interrupt
from client.store.identity import ensure_identity
from client.store.paths import home_folders, make_private
from protocol.address import Address

HOST = "127.0.0.1"
MODEL = ModelChoices(layers=8, width=128, heads=4, context=64)
SEQUENCES, EACH = 4, 8
"""Sequences in a microbatch, microbatches of a volunteer in a step."""
LEFT_OUT = 2
START_S, POLL_S = 600.0, 0.1
WINDOW_S = 30.0
"""Counted for at least so long: the counts begin and end in the midst of some step."""
VOLUNTEER_BYTES = 500 * 10**6


@dataclass(frozen=True)
class Cost:
    """One shape. All but ``step_s`` per volunteer and step: mean, and the largest of any."""

    stages: int
    replicas: int
    steps: int
    step_s: float
    messages: float
    most_messages: float
    unhurried: float
    """Messages less one a second on each link."""
    tensor_bytes: float
    other_bytes: float
    most_other_bytes: float
    links: float
    cores: int
    load: float


def main() -> None:
    """Run and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", default="2x1,2x2,2x4,4x1,4x2,4x4,8x1,8x2,8x4")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("results"))
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    file = asked.out / "size.jsonl"
    for shape in asked.shapes.split(","):
        stages, replicas = (int(part) for part in shape.split("x"))
        need = stages * replicas * VOLUNTEER_BYTES
        if psutil.virtual_memory().available < need:
            print(f"{shape}: skipped, {need / 1e9:.0f} GB of memory are not free", flush=True)
            continue
        with terminate_as_interrupt(), tempfile.TemporaryDirectory(prefix="vol") as folder:
            cost = measure(Path(folder), stages, replicas, asked.steps)
        with file.open("a") as out:
            out.write(json.dumps(asdict(cost)) + "\n")
        print(words(cost), flush=True)
        (asked.out / "size.md").write_text(markdown(read(file)))


def measure(homes: Path, stages: int, replicas: int, steps: int) -> Cost:
    """Train some steps in a swarm of one shape."""
    _found(homes, stages, replicas)
    flags = ("--listen-host", HOST, "--threads", "1")
    with LocalSwarm(homes / "x.swarm", homes, homes / "logs") as swarm:
        swarm.start("v0", flags).wait_until_it_answers(START_S)
        for number in range(1, stages * replicas):
            swarm.start(f"v{number}", flags)
        _wait(swarm, lambda now: _served(now, stages, replicas))
        begin = max(now.step for now in _all(swarm)) + LEFT_OUT
        _wait(swarm, lambda now: now.step >= begin)
        start, before = time.monotonic(), _all(swarm)
        _wait(swarm, lambda now: now.step >= begin + steps and time.monotonic() > start + WINDOW_S)
        after, seconds = _all(swarm), time.monotonic() - start
        load = round(os.getloadavg()[0], 1)
        for member in swarm.members:  # nothing of theirs is needed: no orderly end
            member.kill()
    done = statistics.mean(b.step - a.step for a, b in zip(before, after, strict=True))
    pairs = [(a.network, b.network) for a, b in zip(before, after, strict=True)]
    messages = [(b.sent_messages - a.sent_messages) / done for a, b in pairs]
    tensors = [(b.sent_tensor_bytes - a.sent_tensor_bytes) / done for a, b in pairs]
    sent = [(b.sent_bytes - a.sent_bytes) / done for a, b in pairs]
    others = [all_of_it - of_tensors for all_of_it, of_tensors in zip(sent, tensors, strict=True)]
    links = statistics.mean(b.links for _, b in pairs)
    return Cost(
        *(stages, replicas, steps),
        step_s=round(seconds / done, 3),
        messages=round(statistics.mean(messages), 1),
        most_messages=round(max(messages), 1),
        unhurried=round(statistics.mean(messages) - links * seconds / done, 1),
        tensor_bytes=round(statistics.mean(tensors)),
        other_bytes=round(statistics.mean(others)),
        most_other_bytes=round(max(others)),
        links=round(links, 1),
        cores=os.cpu_count() or 0,
        load=load,
    )


def _found(homes: Path, stages: int, replicas: int) -> None:
    founder = ensure_identity(make_private(home_folders(homes / "v0").data))
    run = RunChoices(
        name="size",
        stages=stages,
        steps=1_000_000,
        sequences=SEQUENCES,
        microbatches=EACH * replicas,
        redundancy=replicas,
        dual_homing=False,
        measure=False,
        checkpoint_every=100_000,
    )
    manifest = found_swarm(founder.peer, run, MODEL, OptimizerChoices()).manifest
    address = Address("ip4", HOST, free_port(HOST), founder.peer)
    write_swarm_file(homes / "x.swarm", sign(manifest, founder, (address,)))


def _served(now: Snapshot, stages: int, replicas: int) -> bool:
    counts = [len(stage.replicas) for stage in now.stages]
    return len(counts) == stages and min(counts) >= replicas and now.step > 0


def _wait(swarm: LocalSwarm, happened: Callable[[Snapshot], bool]) -> None:
    deadline = time.monotonic() + START_S
    while True:
        if not all(member.alive for member in swarm.members):
            raise SystemExit("a volunteer ended:\n" + swarm.members[0].log_tail())
        now = swarm.members[0].snapshot()
        if now is not None and happened(now):
            return
        if time.monotonic() > deadline:
            raise SystemExit("nothing happens:\n" + swarm.members[0].log_tail(20))
        time.sleep(POLL_S)


def _all(swarm: LocalSwarm) -> list[Snapshot]:
    """Return everybody's snapshot."""
    found = [member.snapshot() for member in swarm.members]
    missing = [m.name for m, now in zip(swarm.members, found, strict=True) if now is None]
    if missing:
        raise SystemExit(f"{', '.join(missing)} does not answer")
    return [now for now in found if now is not None]


def words(cost: Cost) -> str:
    """Return a shape in one line."""
    return (
        f"{cost.stages} x {cost.replicas}: {cost.messages:g} messages (at most "
        f"{cost.most_messages:g}; {cost.unhurried:g} less heartbeats), "
        f"{cost.tensor_bytes / 1e6:.2f} MB of tensors and "
        f"{cost.other_bytes / 1e3:.1f} kB else per volunteer and step; {cost.step_s:g} s per step"
    )


def read(path: Path) -> list[Cost]:
    """Return all shapes so far."""
    return [Cost(**json.loads(line)) for line in path.read_text().splitlines()]


def markdown(costs: Sequence[Cost]) -> str:
    """Return the page; of several runs of a shape the newest."""
    newest = {(cost.stages, cost.replicas): cost for cost in costs}
    rows = [
        "| stages x replicas | volunteers | messages | largest | less heartbeats | tensors MB | "
        "else kB | largest | links | s per step | load |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    rows += [
        f"| {c.stages} x {c.replicas} | {c.stages * c.replicas} | {c.messages:g} | "
        f"{c.most_messages:g} | {c.unhurried:g} | {c.tensor_bytes / 1e6:.2f} | "
        f"{c.other_bytes / 1e3:.1f} | {c.most_other_bytes / 1e3:.1f} | "
        f"{c.links:g} | {c.step_s:g} | {c.load:g} |"
        for _, c in sorted(newest.items())
    ]
    cores = sorted({cost.cores for cost in costs})
    return (
        f"# Cost against size\n\nWritten by `python -m tests.bench.size`. {__doc__}\n"
        f"Machine: {cores} cores. Sent, per volunteer and step.\n\n" + "\n".join(rows) + "\n"
    )


if __name__ == "__main__":
    main()
