"""The model's view of a machine and of a stage's work."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.manifest import StageCost

MOST_GRAPHS = 16
"""A replica never keeps more forward graphs than this (``client.train.workers.opening``)."""
MEMORY_SHARE = 0.85
"""Share of a machine's memory that stages may take."""
RERUN_WORK = 4 / 3
"""Work of a stage that runs its blocks once more for the backward, by that of one that does not."""


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

    def fits(self, machine: Machine) -> bool:
        """Whether the machine can be a replica, by the matching's rule."""
        return machine.memory_bytes >= self.cost.memory_bytes

    def taken_bytes(self, machine: Machine) -> float:
        """Return the memory that the machine spends on a replica."""
        return self.usual_bytes if self._whole_graphs(machine) >= 0 else self.cost.memory_bytes

    def graphs(self, machine: Machine) -> int:
        """Return the forward graphs that the machine keeps, as in ``client.compute.memory``."""
        return max(1, self._whole_graphs(machine))

    def _whole_graphs(self, machine: Machine) -> int:
        """Return the whole graphs that fit beside the one in use; -1 if not even that one fits."""
        if self.graph_bytes <= 0:
            return MOST_GRAPHS
        left = MEMORY_SHARE * machine.memory_bytes - self.fixed_bytes
        return int(min(MOST_GRAPHS, max(-1, left // self.graph_bytes - 1)))

    def rate(self, machine: Machine, slower: float = 1.0) -> float:
        """Return c_vs = min(flops / F_s, uplink / U_s, downlink / D_s), microbatches/s.

        As in the matching, without fixed point. 0 if memory is too small.
        ``slower``: work of a microbatch, in multiples of the stage's usual work.
        """
        if not self.fits(machine):
            return 0.0
        cost = self.cost
        if self._whole_graphs(machine) < 0:
            slower *= RERUN_WORK
        return min(
            _ratio(machine.flop_per_s, cost.flops * slower),
            _ratio(machine.upload_bytes_per_s, cost.uplink_bytes),
            _ratio(machine.download_bytes_per_s, cost.downlink_bytes),
        )


def _ratio(supply: float, demand: float) -> float:
    return supply / demand if demand > 0 else float("inf")
