"""Forward and backward through one remote transformer block: our stage beside hivemind's server.

The same block, width, batch and context; server and client a process each, on loopback, one thread.
Ours: a real seat of a middle stage (receipts, next hop, worker, S8), between two ends that encode
and decode but do not compute. Theirs: ``RemoteExpert`` to a ``Server`` with a ``ModuleBackend``,
without an optimizer. One call at a time, and four. The bound is the block alone, computed in one
place.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from client.cli.founding.manifest import found_swarm
from client.cli.founding.options import ModelChoices, OptimizerChoices, RunChoices
from client.store.identity import ensure_identity
from client.store.paths import make_private
from protocol.limits import MAX_MICROBATCHES_PER_STEP
from protocol.manifest import Manifest
from tests.bench.rivals import environment
from tests.bench.rivals.attempts import attempt
from tests.bench.rivals.chain_stage import STAGE
from tests.bench.rivals.records import Record, Records, load
from tests.bench.rivals.swarm_of_peers import ONE_THREAD, talking
from tests.bench.timing import timed_together

PART = "chain"
OURS, BOUND = "ours", "bound"
HIVEMIND = {"hivemind": "none", "hivemind uniform 8 bit": "uniform8"}
IN_FLIGHT = (1, 4)
START_S = 60.0
Say = Callable[[str], None]


@dataclass(frozen=True)
class Block:
    """A transformer block and what goes through it."""

    sequences: int
    context: int
    width: int
    heads: int

    def __str__(self) -> str:
        return f"{self.sequences} x {self.context} x {self.width}"


BLOCKS = (Block(8, 128, 128, 4), Block(8, 256, 256, 8))


def measure(records: Records, rounds: int, say: Say, *, quick: bool = False) -> None:
    """Let the contenders take turns."""
    seconds = 2.0 if quick else 4.0
    blocks = BLOCKS[:1] if quick else BLOCKS
    for block, number, who in itertools.product(blocks, range(rounds), (BOUND, OURS, *HIVEMIND)):
        if all(records.has(PART, case_of(block, width), who, number) for width in IN_FLIGHT):
            continue
        what = f"chain {block}, round {number + 1} of {rounds}: {who}"
        say(what)
        run = partial(contender, block, who, seconds)
        rates = attempt(run, records, PART, what, say) or []
        for width, rate in zip(IN_FLIGHT, rates, strict=False):
            case, busy = case_of(block, width), round(load(), 2)
            records.add(Record(PART, case, who, number, [round(rate, 2)], "samples/s", busy))
            say(f"  {width} in flight: {rate:.1f} samples/s")


def case_of(block: Block, in_flight: int) -> str:
    """Name a case."""
    return f"{block}, {in_flight} at a time"


def contender(block: Block, who: str, seconds: float, folder: Path) -> list[float]:
    """Return samples per second for every number in flight."""
    if who == BOUND:
        return bound(block, folder)
    if who == OURS:
        return ours(block, seconds, folder)
    environment.ensure()
    return theirs(block, HIVEMIND[who], seconds, folder)


def bound(block: Block, folder: Path) -> list[float]:
    """Compute forward and backward of the block where it is, on one thread, with nothing sent."""
    [seconds] = timed_together(manifest_of(block, folder), [STAGE])
    return [block.sequences / seconds for _ in IN_FLIGHT]


def ours(block: Block, seconds: float, folder: Path) -> list[float]:
    """Run a seat and the two ends."""
    path = folder / "manifest.json"
    path.write_bytes(msgspec.json.encode(manifest_of(block, folder)))
    python = [sys.executable, "-m"]
    stage = [*python, "tests.bench.rivals.chain_stage", str(path)]
    client = [*python, "tests.bench.rivals.chain_client", str(path), str(seconds), _numbers()]
    with talking([stage, client], folder, ONE_THREAD) as peers:
        addresses = [peer.line(START_S) for peer in peers]
        for peer in peers:
            peer.say(" ".join(addresses))
        return _rates([peers[1].line(START_S + seconds) for _ in IN_FLIGHT])


def theirs(block: Block, compression: str, seconds: float, folder: Path) -> list[float]:
    """Run hivemind's server and client."""
    python = [str(environment.PYTHON), "-m", "tests.bench.rivals.hivemind_chain"]
    shape = [str(block.sequences), str(block.context), str(block.width)]
    server = [*python, "server", *shape, str(block.heads), compression]
    with talking([server], folder, ONE_THREAD) as [host]:
        client = [*python, "client", *shape, host.line(START_S), str(seconds), _numbers()]
        (folder / "client").mkdir()
        with talking([client], folder / "client", ONE_THREAD) as [caller]:
            return _rates([caller.line(START_S + seconds) for _ in IN_FLIGHT])


def manifest_of(block: Block, folder: Path) -> Manifest:
    """Found three stages of one such block each, whose step never closes."""
    text = folder / "text"
    text.write_bytes(bytes(range(32, 127)) * 690)
    run = RunChoices(
        name="chain",
        data=str(text),
        optimizer="adamw",
        stages=3,
        steps=1,
        sequences=block.sequences,
        microbatches=MAX_MICROBATCHES_PER_STEP,
        measure=False,
    )
    model = ModelChoices(layers=3, width=block.width, heads=block.heads, context=block.context)
    founder = ensure_identity(make_private(folder / "founder"))
    return found_swarm(founder.peer, run, model, OptimizerChoices()).manifest


def _numbers() -> str:
    return ",".join(map(str, IN_FLIGHT))


def _rates(lines: Sequence[str]) -> list[float]:
    return [json.loads(line)["samples_per_s"] for line in lines]
