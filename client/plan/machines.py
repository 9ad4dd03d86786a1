"""The model's view of a machine and of a stage's work."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from protocol.manifest import StageCost

MOST_GRAPHS = 16
"""A replica never keeps more forward graphs than this (``client.train.workers.opening``)."""
MEMORY_SHARE = 0.85
"""Share of a machine's memory that stages may take (RECIPES, "Memory of a replica")."""
RERUN_WORK = 4 / 3
"""Work of a stage that runs its blocks once more for the backward, by that of one that does not."""
OFFLOAD_WORK = 1.15
"""At most, of a stage whose vectors are offloaded, by that of one that keeps them."""
_FEW_GRAPHS = 3
"""With which the memory of a replica is told, if it keeps so many."""


@dataclass(frozen=True, slots=True)
class Machine:
    """One volunteer. Upload and download are separate; both may be used at the same time."""

    name: str
    flop_per_s: float
    """As ``volunteer bench`` measures it: the unit that stage costs are divided by."""
    memory_bytes: float
    """Bytes that stages may use."""
    upload_bytes_per_s: float
    download_bytes_per_s: float
    rtt_s: float = 0.0
    """Round trip to a typical other member."""
    watts: float = 0.0
    devices: int = 1
    """That compute as one: the speed is that of all of them, the memory that of each."""
    host_bytes: float = 0.0
    """Memory beside that of the devices, for what the first keeps of a stage that is cut over them,
    and for vectors that are offloaded; 0: there is none."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A stage of which each device of a machine has a part; memory in bytes, of each device."""

    devices: int
    why_not: str = ""
    """Why it cannot be cut; empty: it can."""
    fixed_bytes: float = 0.0
    graph_bytes: float = 0.0
    rerun_bytes: float = 0.0
    """All of it, with one graph and the blocks run again."""
    host_bytes: float = 0.0
    """What the first one keeps beside its part, if there is other memory for it."""
    share_bytes: float = 0.0
    """What each device has of that if there is none."""
    work: float = 1.0
    """Of a microbatch that is dealt out unevenly, by that of one that is not."""

    def fits(self, machine: Machine) -> bool:
        """Whether the machine's devices have the memory, as in ``client.train.workers.opening``."""
        least = self.rerun_bytes + self.shared_bytes(machine)
        enough = not machine.host_bytes or machine.host_bytes >= self.host_bytes
        return enough and MEMORY_SHARE * machine.memory_bytes >= least

    def shared_bytes(self, machine: Machine) -> float:
        """Return what a device has of what rounds and versions need."""
        return 0.0 if machine.host_bytes else self.share_bytes


@dataclass(frozen=True, slots=True)
class StageWork:
    """The work of one stage at a replica."""

    cost: StageCost
    fixed_bytes: float = 0.0
    """Parameters, optimizer and buffers."""
    graph_bytes: float = 0.0
    """One forward graph, kept from a microbatch's forward to its backward."""
    usual_bytes: float = 0.0
    """Memory with a few whole graphs."""
    offload_bytes: float = math.inf
    """Memory with its vectors offloaded, and its blocks run again."""
    away_bytes: float = 0.0
    """Memory of the host for those."""
    cuts: tuple[Cut, ...] = ()
    """It cut over the devices of a machine, by their number."""

    def fits(self, machine: Machine) -> bool:
        """Whether the machine can be a replica: by the matching's rule, or with offloading or cut
        over its devices, for which it advertises as much as the rule asks for."""
        if self._is_too_large(machine):
            cut = self.cut_by(machine)
            return cut.fits(machine) if cut is not None else self._offloads(machine)
        return True

    def cut_by(self, machine: Machine) -> Cut | None:
        """Return how the machine's devices would share the stage; None: each has all of it, or it
        cannot be cut."""
        if not self._is_too_large(machine):
            return None
        return next((cut for cut in self._cuts_over(machine) if not cut.why_not), None)

    def why_uncut(self, machine: Machine) -> str:
        """Return why the machine's devices cannot cut the stage; empty: they can, or need not."""
        if not self._is_too_large(machine):
            return ""
        return next((cut.why_not for cut in self._cuts_over(machine)), "")

    def _cuts_over(self, machine: Machine) -> Iterator[Cut]:
        return (cut for cut in self.cuts if cut.devices == machine.devices)

    def _is_too_large(self, machine: Machine) -> bool:
        return machine.memory_bytes < self.cost.memory_bytes

    def _offloads(self, machine: Machine) -> bool:
        return (
            machine.devices == 1
            and self._is_too_large(machine)
            and MEMORY_SHARE * machine.memory_bytes >= self.offload_bytes
            and machine.host_bytes >= self.away_bytes
        )

    def taken_bytes(self, machine: Machine) -> float:
        """Return the memory that the machine, or each of its devices, spends on a replica."""
        kept = self._whole_graphs(machine)
        if (cut := self.cut_by(machine)) is not None:
            few = cut.fixed_bytes + cut.graph_bytes * min(_FEW_GRAPHS, 1 + kept)
            return (few if kept >= 0 else cut.rerun_bytes) + cut.shared_bytes(machine)
        if self._offloads(machine):
            return self.offload_bytes
        return self.usual_bytes if kept >= 0 else self.cost.memory_bytes

    def graphs(self, machine: Machine) -> int:
        """Return the forward graphs that the machine keeps, as in ``client.compute.memory``; each
        device that has the whole stage keeps its own."""
        alone = self.cut_by(machine) is None
        return max(1, self._whole_graphs(machine)) * (machine.devices if alone else 1)

    def _whole_graphs(self, machine: Machine) -> int:
        """Return the whole graphs that fit beside the one in use, in one device; -1 if not even
        that one fits."""
        fixed_bytes, graph_bytes = self.fixed_bytes, self.graph_bytes
        if (cut := self.cut_by(machine)) is not None:
            fixed_bytes = cut.fixed_bytes + cut.shared_bytes(machine)
            graph_bytes = cut.graph_bytes
        if graph_bytes <= 0:
            return MOST_GRAPHS
        left = MEMORY_SHARE * machine.memory_bytes - fixed_bytes
        return int(min(MOST_GRAPHS, max(-1, left // graph_bytes - 1)))

    def rate(self, machine: Machine, slower: float = 1.0) -> float:
        """Return c_vs = min(flops / F_s, uplink / U_s, downlink / D_s), microbatches/s.

        As in the matching, without fixed point. 0 if memory is too small. What the devices of a
        machine send each other counts as hidden behind their work.
        ``slower``: work of a microbatch, in multiples of the stage's usual work.
        """
        if not self.fits(machine):
            return 0.0
        cost = self.cost
        if self._whole_graphs(machine) < 0:
            slower *= RERUN_WORK
        if (cut := self.cut_by(machine)) is not None:
            slower *= cut.work
        if self._offloads(machine):
            slower *= OFFLOAD_WORK
        return min(
            _ratio(machine.flop_per_s, cost.flops * slower),
            _ratio(machine.upload_bytes_per_s, cost.uplink_bytes),
            _ratio(machine.download_bytes_per_s, cost.downlink_bytes),
        )


def _ratio(supply: float, demand: float) -> float:
    return supply / demand if demand > 0 else float("inf")
