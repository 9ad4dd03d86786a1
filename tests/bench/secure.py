"""Measures secret sums on this machine: bytes, masks, time, and whether sums stay exact.

    python -m tests.bench.secure [--mib 100] [--members 4 8 16] [--json]

The machines of the members (``protocol.secrecy``) deal, mask and open as in a run; contributions
are encoded, masked, summed by the owners of their parts, opened and compared with the sum of the
same integers in the clear, number by number. Messages are counted as they are encoded, tensors with
their headers, and S8 for the same parts beside them.

Then one or two members are lost in each phase of a round, with 1 MiB. Before the commit the others
begin again with fresh masks; after it those that are left open the sum.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray

from client.compute.masks import Integers, add_mask
from client.compute.payload import Header
from client.compute.public_scale import exponents, to_integers, to_numbers
from protocol.effects import Effect, Send
from protocol.ids import PeerId, peer_id_from_key
from protocol.rounds.shards import shard_bounds
from protocol.secrecy.machine import Masking
from protocol.wire.messages import Dealing, Opening, Plan, encode_message
from protocol.wire.parts import PlanMember

BEFORE = ("plan", "dealing", "contribution", "sum", "ready")
AFTER = ("commit", "opening")
MASKS_ALONE_MIB = 64


@dataclass
class Group:
    """The machines of a stage's members, and what their messages weigh."""

    count: int
    there: set[PeerId] = field(default_factory=set)
    machines: dict[PeerId, Masking] = field(default_factory=dict)
    control_bytes: int = 0
    """Sent by all members."""

    def __post_init__(self) -> None:
        peers = [peer_id_from_key(bytes([n]) * 32) for n in range(self.count)]
        self.there = set(peers)
        for n, peer in enumerate(peers):
            self.machines[peer] = Masking(peer, bytes([n + 1]) * 32, lambda: self.there)

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
    mib: float
    up_mib: float
    s8_up_mib: float
    control_kib: float
    """Dealings and openings, sent by one member."""
    encode_s: float
    mask_s: float
    """Its own masks and those of its pairs on its contribution."""
    open_s: float
    """All members' own masks out of the sum, and the numbers decoded."""
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


def whole_round(members: int, mib: float) -> Round:
    """Close one round of this many members with a contribution of this size in fp32."""
    size, group = int(mib * 2**20 / 4) // 128 * 128, Group(members)
    usual = torch.exp(4 * torch.sin(torch.arange(size) / 5e4)) * 1e-4
    scale = exponents(usual, 100, 0.99, 1024, members)
    bounds = shard_bounds(size, [1.0] * members)
    peers = group.deal(1)
    seeds: tuple[bytes, ...] = ()
    encode_s, mask_s, open_s, exact = 0.0, 0.0, 0.0, True
    sums = [np.zeros(b - a, "<u2") for a, b in pairwise(bounds)]
    clear = [np.zeros(b - a, np.int32) for a, b in pairwise(bounds)]
    for place, peer in enumerate(peers):
        masks = group.masks(peer)
        assert masks is not None
        numbers = gradient(size, place)
        begun = time.perf_counter()
        integers = to_integers(numbers, scale, members)
        encode_s += time.perf_counter() - begun
        for number, (a, b) in enumerate(pairwise(bounds)):
            begun = time.perf_counter()
            sent = masked(integers[a:b], masks, number)
            mask_s += time.perf_counter() - begun
            sums[number] += sent
            clear[number] += integers[a:b].numpy()
    seeds = group.open(peers, ())
    for number, (a, b) in enumerate(pairwise(bounds)):
        begun = time.perf_counter()
        opened = _opened(sums[number], seeds, number)
        to_numbers(torch.from_numpy(opened), scale[a // 128 : -(-b // 128)], torch.empty(b - a))
        open_s += time.perf_counter() - begun
        exact = exact and bool(np.array_equal(opened, clear[number]))
    sent_bytes = [_up(bounds, place, "ring16") for place in range(members)]
    plain_bytes = [_up(bounds, place, "s8") for place in range(members)]
    mask_mib = size * 2 / 2**20 * members
    return Round(
        members=members,
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


def _opened(total: Integers, seeds: Sequence[bytes], number: int) -> NDArray[np.int16]:
    numbers = total.copy()
    for seed in seeds:
        add_mask(numbers, seed, number, subtract=True)
    return numbers.astype(np.uint16).view(np.int16)


def _up(bounds: Sequence[int], place: int, codec: str) -> int:
    """What a member sends: its parts to their owners, and the sum of its own part to all."""
    sizes = [Header(codec, "average", (b - a,)).size_bytes for a, b in pairwise(bounds)]  # type: ignore[arg-type]
    return sum(sizes) - sizes[place] + (len(sizes) - 1) * sizes[place]


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
    total = np.zeros(size, "<u2")
    for peer in peers:
        masks = group.masks(peer)
        assert masks is not None
        total += masked(integers[peer], masks, 0)
    opened = _opened(total, group.open(peers, gone if after else ()), 0)
    clear = sum(integers[peer].numpy().astype(np.int32) for peer in peers)
    exact = "exact" if np.array_equal(opened, clear) else "WRONG"
    how = "opened by the others" if after else "begun again"
    return f"{how}, {exact}"


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
    parser.add_argument("--mib", type=float, default=100.0, help="of a contribution in fp32")
    parser.add_argument("--members", type=int, nargs="+", default=[4, 8, 16])
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rate = masks_alone()
    rounds = [whole_round(count, arguments.mib) for count in arguments.members]
    lost = [
        {"members": count, "lost": gone, "phase": phase, "words": words}
        for count in arguments.members
        for gone in (1, 2)
        for phase, words in losses(count, gone)
    ]
    if arguments.json:
        rows = [asdict(one) | {"ratio": one.ratio} for one in rounds]
        print(json.dumps({"masks_mib_per_s": rate, "rounds": rows, "lost": lost}))
        return
    print(f"masks alone: {rate:,.0f} MiB/s")
    print("members  up MiB  in S8  ratio  control KiB  encode s  mask s  open s  masks MiB/s  sum")
    for one in rounds:
        print(
            f"{one.members:7} {one.up_mib:7.1f} {one.s8_up_mib:6.1f} {one.ratio:6.2f} "
            f"{one.control_kib:12.1f} {one.encode_s:9.2f} {one.mask_s:7.2f} {one.open_s:7.2f} "
            f"{one.masks_mib_per_s:12,.0f}  {'exact' if one.exact else 'WRONG'}"
        )
    for count in arguments.members:
        for gone in (1, 2):
            print(f"{gone} of {count} lost")
            for row in lost:
                if (row["members"], row["lost"]) == (count, gone):
                    print(f"  at the {row['phase']:12} {row['words']}")


if __name__ == "__main__":
    main()
