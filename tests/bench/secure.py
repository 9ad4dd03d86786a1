"""Measures secret sums on this machine: bytes, masks, time, and whether sums stay exact.

    python -m tests.bench.secure [rounds losses rules] [--mib 100] [--members 4 8 16] [--json]

The machines of the members (``protocol.secrecy``) deal, mask and open as in a run; contributions
are encoded, masked, summed by the owners of their parts, opened and compared with the sum of the
same integers in the clear, number by number. Messages are counted as they are encoded, tensors with
their headers, and S8 for the same parts beside them. From eight members on a round is also made of
buckets (``secure-clipping``): the sums of all buckets are broadcast, opened and clipped.

losses: one or two members are lost in each phase of a round, with 1 MiB. Before the commit the
others begin again with fresh masks; after it those that are left open the sum.

rules: what each rule costs and what it protects, in runs of one stage of twelve real executors with
the simulator's clock. Bytes of averaging that one member sends in a step, CPU of all members in a
step, and how far the losses are from those of the reference trainer: without a liar, and where one
of the twelve contributes its gradient sum x -10. The model is small, so the CPU is that of many
small messages; ``rounds`` has that of large ones.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby, pairwise
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from client.compute.bucket_clipping import clipped_sum
from client.compute.masks import Integers, add_mask
from client.compute.payload import CodecName, Header
from client.compute.public_scale import BLOCK, exponents, to_integers, to_numbers
from client.lab.simulate.peer import SimPeer
from client.lab.simulate.seats import Parts
from client.lab.simulate.tensors import TensorWorker, payload_bytes
from client.lab.simulate.training import TrainingWorld
from protocol.effects import Effect, Send
from protocol.ids import PeerId, peer_id_from_key
from protocol.rounds.shards import shard_bounds
from protocol.secrecy.machine import Masking
from protocol.wire.messages import (
    Dealing,
    Message,
    Opening,
    Plan,
    Reduced,
    Segment,
    encode_message,
)
from protocol.wire.parts import PlanMember
from tests.support.tensor_swarms import Lab, largest_difference, plan_for, write_text

BEFORE = ("plan", "dealing", "contribution", "sum", "ready")
AFTER = ("commit", "opening")
MASKS_ALONE_MIB = 64
PARTS = ("rounds", "losses", "rules")
LEAST_OF_BUCKETS = 8
"""Members of a plan with two buckets."""
REPLICAS, STEPS = 12, 8
"""Of the runs: three buckets, of which one may be a liar's."""
MICROBATCHES = 2 * REPLICAS
LIE = -10.0
RUN_LIMIT_S = 3600.0
"""Virtual seconds."""


@dataclass
class Group:
    """The machines of a stage's members, and what their messages weigh."""

    count: int
    there: set[PeerId] = field(default_factory=set)
    machines: dict[PeerId, Masking] = field(default_factory=dict)
    control_bytes: int = 0
    """Sent by all members."""
    bucketed: bool = False

    def __post_init__(self) -> None:
        peers = [peer_id_from_key(bytes([n]) * 32) for n in range(self.count)]
        self.there = set(peers)
        for n, peer in enumerate(peers):
            seen = peer, bytes([n + 1]) * 32, lambda: self.there
            self.machines[peer] = Masking(*seen, bucketed=self.bucketed)

    def deal(self, attempt: int, silent: Collection[PeerId] = ()) -> list[PeerId]:
        """Begin an attempt of those that are there; return its members."""
        members = sorted(self.there)
        plan = Plan(0, 1, attempt, [PlanMember(peer, b"") for peer in members], [0], [])
        for peer in members:
            if not self.machines[peer].may_follow(plan):
                raise RuntimeError("the plan hides too little")
        said = [(peer, list(self.machines[peer].follow(plan))) for peer in members]
        for peer, effects in said:
            self._deliver(peer, [] if peer in silent else effects)
        return members

    def open(self, members: Sequence[PeerId], silent: Collection[PeerId]) -> tuple[bytes, ...]:
        """The attempt is committed; return the seeds that open it."""
        for peer in members:
            if peer not in silent:
                self._deliver(peer, self.machines[peer].open())
        found = set()
        for peer in members:
            if peer not in silent:
                if self.machines[peer].false_openers():
                    raise RuntimeError("an honest member shows a false share")
                found.add(self.machines[peer].seeds())
        [seeds] = found
        if seeds is None:
            raise RuntimeError("too few members are left")
        return seeds

    def masks(self, peer: PeerId) -> Sequence[tuple[bytes, bool]] | None:
        """Return a member's masks, None while it waits for a dealing."""
        if self.machines[peer].false_dealers():
            raise RuntimeError("an honest member deals falsely")
        return self.machines[peer].masks()

    def buckets(self) -> tuple[int, ...]:
        """Return the bucket of each member of the attempt; without buckets all are in one."""
        one = self.machines[min(self.there)]
        return one.buckets or (0,) * len(self.there)

    def _deliver(self, sender: PeerId, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if not isinstance(effect, Send):
                continue
            self.control_bytes += len(encode_message(effect.message))
            machine = self.machines[effect.peer]
            if isinstance(effect.message, Dealing):
                machine.dealing(sender, effect.message)
            elif isinstance(effect.message, Opening):
                machine.opening(sender, effect.message)


@dataclass(frozen=True)
class Round:
    """A whole round, as one member has it."""

    members: int
    buckets: int
    mib: float
    up_mib: float
    s8_up_mib: float
    control_kib: float
    """Dealings and openings, sent by one member."""
    encode_s: float
    mask_s: float
    """Its own masks and those of its pairs on its contribution."""
    open_s: float
    """All members' own masks out of the sums, buckets clipped, and the numbers decoded."""
    masks_mib_per_s: float
    exact: bool

    @property
    def ratio(self) -> float:
        """Bytes sent, against S8."""
        return (self.up_mib + self.control_kib / 1024) / self.s8_up_mib


def gradient(size: int, seed: int) -> torch.Tensor:
    """Return numbers of which some blocks are a hundred times larger than others."""
    made = torch.Generator().manual_seed(seed)
    numbers = torch.randn(size, generator=made)
    return numbers * torch.exp(2 * torch.sin(torch.arange(size) / 5e4))


def masked(integers: torch.Tensor, masks: Sequence[tuple[bytes, bool]], number: int) -> Integers:
    """Return a contribution to a segment behind its masks."""
    numbers = integers.numpy().astype("<u2")
    for seed, adds in masks:
        add_mask(numbers, seed, number, subtract=not adds)
    return numbers


def whole_round(members: int, mib: float, *, bucketed: bool = False) -> Round:
    """Close one round of this many members with a contribution of this size in fp32."""
    size, group = int(mib * 2**20 / 4) // BLOCK * BLOCK, Group(members, bucketed=bucketed)
    peers = group.deal(1)
    buckets = group.buckets()
    counts = np.bincount(buckets)
    usual = torch.exp(4 * torch.sin(torch.arange(size) / 5e4)) * 1e-4
    scale = exponents(usual, 100, 0.99, 1024, int(counts.max()))
    bounds = shard_bounds(size, [1.0] * members)
    seeds: tuple[bytes, ...] = ()
    encode_s, mask_s, open_s, exact = 0.0, 0.0, 0.0, True
    sums = [np.zeros((len(counts), b - a), "<u2") for a, b in pairwise(bounds)]
    clear = [np.zeros((len(counts), b - a), np.int32) for a, b in pairwise(bounds)]
    for place, peer in enumerate(peers):
        masks = group.masks(peer)
        assert masks is not None
        numbers = gradient(size, place)
        begun = time.perf_counter()
        integers = to_integers(numbers, scale, int(counts.max()))
        encode_s += time.perf_counter() - begun
        for number, (a, b) in enumerate(pairwise(bounds)):
            begun = time.perf_counter()
            sent = masked(integers[a:b], masks, number)
            mask_s += time.perf_counter() - begun
            sums[number][buckets[place]] += sent
            clear[number][buckets[place]] += integers[a:b].numpy()
    seeds = group.open(peers, ())
    for number, (a, b) in enumerate(pairwise(bounds)):
        begun = time.perf_counter()
        opened, of = (
            _opened(sums[number], seeds, number, buckets),
            scale[a // BLOCK : -(-b // BLOCK)],
        )
        found = torch.from_numpy(opened)
        whole = clipped_sum(found, of, counts.tolist()) if len(counts) > 1 else found[0]
        to_numbers(whole, of, torch.empty(b - a))
        open_s += time.perf_counter() - begun
        exact = exact and bool(np.array_equal(opened, clear[number]))
    sent_bytes = [_up(bounds, place, "ring16", len(counts)) for place in range(members)]
    plain_bytes = [_up(bounds, place, "s8") for place in range(members)]
    mask_mib = size * 2 / 2**20 * members
    return Round(
        members=members,
        buckets=len(counts),
        mib=mib,
        up_mib=statistics.mean(sent_bytes) / 2**20,
        s8_up_mib=statistics.mean(plain_bytes) / 2**20,
        control_kib=group.control_bytes / members / 1024,
        encode_s=encode_s / members,
        mask_s=mask_s / members,
        open_s=open_s,
        masks_mib_per_s=mask_mib / (mask_s / members),
        exact=exact,
    )


def _opened(
    total: Integers, seeds: Sequence[bytes], number: int, buckets: Sequence[int]
) -> NDArray[np.int16]:
    """Return the sums of the buckets (B, n) without the members' own masks."""
    numbers = total.copy()
    for seed, bucket in zip(seeds, buckets, strict=True):
        add_mask(numbers[bucket], seed, number, subtract=True)
    return numbers.astype(np.uint16).view(np.int16)


def _up(bounds: Sequence[int], place: int, codec: CodecName, sums: int = 1) -> int:
    """What a member sends: its parts to their owners, and the sums of its own part to all."""
    parts = [Header(codec, "average", (b - a,)).size_bytes for a, b in pairwise(bounds)]
    own = bounds[place + 1] - bounds[place]
    broadcast = Header(codec, "average", (sums * own,)).size_bytes
    return sum(parts) - parts[place] + (len(parts) - 1) * broadcast


def losses(members: int, lost: int) -> Iterator[tuple[str, str]]:
    """Lose members in each phase; yield the phase and what came of it."""
    for phase in (*BEFORE, *AFTER):
        try:
            words = _lose(phase, members, lost)
        except RuntimeError as error:
            words = str(error)
        yield phase, words


def _lose(phase: str, members: int, lost: int) -> str:
    group = Group(members)
    gone = sorted(group.there)[:lost]
    size = 2**18
    integers = {
        peer: torch.randint(
            -1000, 1000, (size,), generator=torch.Generator().manual_seed(n)
        ).short()
        for n, peer in enumerate(sorted(group.there))
    }
    after, attempt = phase in AFTER, 1
    peers = group.deal(attempt, silent=gone if phase == "dealing" else ())
    if not after:
        group.there -= set(gone)  # whatever came of the attempt, its sum is never opened
        attempt = 2
        peers = group.deal(attempt)
    total = np.zeros((1, size), "<u2")
    for peer in peers:
        masks = group.masks(peer)
        assert masks is not None
        total[0] += masked(integers[peer], masks, 0)
    seeds = group.open(peers, gone if after else ())
    opened = _opened(total, seeds, 0, [0] * len(peers))[0]
    clear = sum(integers[peer].numpy().astype(np.int32) for peer in peers)
    exact = "exact" if np.array_equal(opened, clear) else "WRONG"
    how = "opened by the others" if after else "begun again"
    return f"{how}, {exact}"


# --- rules ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rule:
    """What one member sees of the others, and what the others' lies can do."""

    codec: CodecName
    protects: str


RULES: Final = {
    "sum": Rule("s8", "nothing: contributions are seen, and one liar spoils the sum"),
    "centred-clipping": Rule("s8", "the sum from liars in the minority; contributions are seen"),
    "secure": Rule("ring16", "each contribution, behind the sum of all; one liar spoils it"),
    "secure-clipping": Rule(
        "ring16", "each contribution, behind a sum of four; the sum from liars in a few fours"
    ),
}


@dataclass(frozen=True)
class Run:
    """A run by one rule, beside the reference trainer's."""

    rule: str
    up_kib: float
    """Of averaging, sent by one member in a step."""
    cpu_ms: float
    """Of all members in a step."""
    off: float
    """Largest relative difference of a loss from the reference trainer's, without a liar."""
    off_with_a_liar: float
    protects: str


class Meter:
    """Counts the bytes of averaging that a world's members send."""

    def __init__(self, world: TrainingWorld) -> None:
        self.bytes, self._send = 0, world.send
        world.send = self._count  # type: ignore[method-assign]

    def _count(self, peer: SimPeer, to: PeerId, message: Message, parts: Parts = ()) -> None:
        if isinstance(message, Segment | Reduced | Dealing | Opening):
            self.bytes += len(encode_message(message)) + sum(map(payload_bytes, parts))
        self._send(peer, to, message, parts)


def run_by(lab: Lab, rule: str) -> Run:
    """Train twelve replicas of one stage by a rule, without a liar and with one."""
    plan = replace(plan_for("gpt", 1, STEPS), microbatches_per_step=MICROBATCHES)
    expected, off = lab.reference(plan), []
    for lies in (False, True):
        codec = RULES[rule].codec
        world = lab.world(plan, REPLICAS, averaging=codec, aggregation=rule)
        if lies:
            _lie(world)
        meter, begun = Meter(world), time.process_time()
        world.run(RUN_LIMIT_S)
        cpu_s = time.process_time() - begun
        found = [world.losses.get(step, expected[step]) for step in range(STEPS)]
        off.append(largest_difference(found, expected))
        if not lies:
            up_kib = meter.bytes / REPLICAS / STEPS / 1024
            cpu_ms = 1000 * cpu_s / STEPS
    return Run(rule, up_kib, cpu_ms, *off, RULES[rule].protects)


def _lie(world: TrainingWorld) -> None:
    """Let one replica contribute its gradient sum times ``LIE``."""
    worker = next(iter(world.peers.values())).worker
    if not isinstance(worker, TensorWorker):
        raise TypeError("only real executors lie here")
    averager = worker.averager
    honest = averager._with_residual

    def lied(start: int, end: int) -> torch.Tensor:
        return honest(start, end).clone().mul_(LIE)

    averager._with_residual = lied  # type: ignore[method-assign]


def rules() -> Iterator[Run]:
    """Yield a run by each rule."""
    with tempfile.TemporaryDirectory(prefix="rules") as folder:
        lab = Lab(Path(folder))
        write_text(lab.text)
        for rule in RULES:
            yield run_by(lab, rule)


def masks_alone() -> float:
    """Return MiB/s of masks on one core."""
    numbers, rates = np.zeros(MASKS_ALONE_MIB * 2**19, "<u2"), []
    for number in range(5):
        begun = time.perf_counter()
        add_mask(numbers, b"seed", number)
        rates.append(MASKS_ALONE_MIB / (time.perf_counter() - begun))
    return statistics.median(rates)


def main() -> None:
    """Read the arguments, measure, and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", choices=[*PARTS, []], default=PARTS)
    parser.add_argument("--mib", type=float, default=100.0, help="of a contribution in fp32")
    parser.add_argument("--members", type=int, nargs="+", default=[4, 8, 16])
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    rate = masks_alone()
    rounds, lost, runs = list[Round](), list[Lost](), iter(list[Run]())
    if "rounds" in asked.parts:
        rounds = [whole_round(count, asked.mib) for count in asked.members]
        in_buckets = [count for count in asked.members if count >= LEAST_OF_BUCKETS]
        rounds += [whole_round(count, asked.mib, bucketed=True) for count in in_buckets]
    if "losses" in asked.parts:
        lost = [
            Lost(count, gone, phase, words)
            for count in asked.members
            for gone in (1, 2)
            for phase, words in losses(count, gone)
        ]
    if "rules" in asked.parts:
        runs = rules()
    if asked.json:
        rows = [asdict(one) | {"ratio": one.ratio} for one in rounds]
        found = {
            "rounds": rows,
            "lost": list(map(asdict, lost)),
            "rules": [asdict(one) for one in runs],
        }
        print(json.dumps({"masks_mib_per_s": rate} | found))
        return
    print(f"masks alone: {rate:,.0f} MiB/s")
    print_rounds(rounds)
    print_losses(lost)
    print_rules(runs)


@dataclass(frozen=True)
class Lost:
    """What came of a round in which members were lost."""

    members: int
    lost: int
    phase: str
    words: str


def print_rounds(rounds: Sequence[Round]) -> None:
    """Print whole rounds, of one sum and in buckets."""
    if rounds:
        print(
            "members  sums  up MiB  in S8  ratio  control KiB  encode s  mask s  open s  ", end=""
        )
        print("masks MiB/s  sum")
    for one in rounds:
        print(
            f"{one.members:7} {one.buckets:5} {one.up_mib:7.1f} {one.s8_up_mib:6.1f} "
            f"{one.ratio:6.2f} {one.control_kib:12.1f} {one.encode_s:9.2f} {one.mask_s:7.2f} "
            f"{one.open_s:7.2f} {one.masks_mib_per_s:12,.0f}  {'exact' if one.exact else 'WRONG'}"
        )


def print_losses(lost: Sequence[Lost]) -> None:
    """Print what came of rounds in which members were lost."""
    for (count, gone), rows in groupby(lost, lambda row: (row.members, row.lost)):
        print(f"{gone} of {count} lost")
        for row in rows:
            print(f"  at the {row.phase:12} {row.words}")


def print_rules(runs: Iterable[Run]) -> None:
    """Print runs by each rule as they come; ratios are those to the first."""
    first: Run | None = None
    for one in runs:
        if first is None:
            print(f"{REPLICAS} replicas, {STEPS} steps")
            print("rule              up KiB a step  CPU ms a step  loss off  one liar  protects")
        first = first or one
        up, cpu = one.up_kib / first.up_kib, one.cpu_ms / first.cpu_ms
        print(
            f"{one.rule:17} {one.up_kib:6.1f} {up:4.2f} x {one.cpu_ms:6.0f} {cpu:4.2f} x "
            f"{one.off:10.5f} {one.off_with_a_liar:9.4f}  {one.protects}",
            flush=True,
        )


if __name__ == "__main__":
    main()
