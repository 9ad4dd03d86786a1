"""A replica's view of the swarm: the live replicas of every stage.

Built by membership from adverts and heartbeats, read by pipeline and rounds. Immutable; a change
makes a new view.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from operator import attrgetter

from msgspec import Struct

from protocol.ids import PeerId, rank


class Replica(Struct, frozen=True):
    """One live volunteer in one stage."""

    peer: PeerId
    version: int
    serving: bool
    """False while it still fetches the stage's state."""
    rate: float = 0.0
    """Microbatches per second."""
    moved: int = 0
    """Of the step and its round, how much is there; it changes while they go on."""
    missing: tuple[PeerId, ...] = ()
    """Peers without which, by its claim, its stage cannot go on."""
    audited: tuple[PeerId, ...] = ()
    """Replicas of its stage whose work it has audited in agreement."""
    leaving: bool = False
    """It hands its work over and goes."""
    returned: bool = False
    """Its stage has the gradients of all microbatches of its step, as it says."""
    uplink_bytes_per_s: float = 0.0
    """Bandwidth by its advert, including its owner's limit; 0: unknown."""
    downlink_bytes_per_s: float = 0.0


@dataclass(frozen=True, slots=True)
class SwarmView:
    """Live replicas by stage, the viewer's own seat included."""

    stages: tuple[tuple[Replica, ...], ...]
    unseen: frozenset[int] = frozenset()
    """Stages of which we see no replica but that others report as served."""
    relayed: frozenset[PeerId] = frozenset()
    """Peers whom the viewer itself reaches through a relay only."""
    _serving: tuple[tuple[Replica, ...], ...] = field(init=False, repr=False, compare=False)
    _committed: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        serving = tuple(tuple(r for r in stage if r.serving) for stage in self.stages)
        newest: dict[PeerId, int] = {}
        for replica in (r for stage in serving for r in stage):
            newest[replica.peer] = max(replica.version, newest.get(replica.peer, 0))
        borne_out = min(sorted(newest.values(), reverse=True)[:2], default=0)
        said = (max((r.version for r in stage), default=0) for stage in serving)
        committed = tuple(min(version, borne_out) for version in said)
        object.__setattr__(self, "_serving", serving)
        object.__setattr__(self, "_committed", committed)

    @classmethod
    def of(
        cls,
        stages: Sequence[Sequence[Replica]],
        unseen: frozenset[int] = frozenset(),
        relayed: frozenset[PeerId] = frozenset(),
    ) -> SwarmView:
        """Build a view with replicas in a canonical order."""
        ordered = tuple(tuple(sorted(s, key=attrgetter("peer"))) for s in stages)
        return cls(ordered, unseen, relayed)

    def serving(self, stage: int) -> tuple[Replica, ...]:
        """Return the serving replicas of a stage (none for a stage that does not exist)."""
        return self._serving[stage] if 0 <= stage < len(self._serving) else ()

    def staying(self, stage: int, apart: PeerId | None = None) -> list[Replica]:
        """Return the replicas that serve a stage and do not leave, without one ``apart``."""
        return [r for r in self.serving(stage) if r.peer != apart and not r.leaving]

    @property
    def ending(self) -> bool:
        """Whether a stage is about to lose its last replica: then the others save where they stand,
        so that the run can be taken up there."""
        return any(there and all(r.leaving for r in there) for there in self._serving)

    def replicas(self) -> tuple[frozenset[PeerId], ...]:
        """Return the serving replicas by stage."""
        return tuple(frozenset(r.peer for r in serving) for serving in self._serving)

    def committed(self, stage: int) -> int:
        """Return the newest version that a live replica of a stage serves (0 if there is none).

        It counts only up to the version that at least two members of the swarm serve or have
        passed, in any stages: one alone may have invented it. An honest replica is ahead of all
        others for a moment only. A member that is alone in the view is believed.
        """
        return self._committed[stage] if 0 <= stage < len(self.stages) else 0

    def moved(self) -> tuple[dict[PeerId, int], ...]:
        """Return by stage and replica how much of the replica's step is there."""
        return tuple({r.peer: r.moved for r in serving} for serving in self._serving)

    def empty_stages(self) -> tuple[int, ...]:
        """Return the stages that no live replica serves, as far as we know."""
        stages = (s for s in range(len(self.stages)) if not self.serving(s))
        return tuple(stage for stage in stages if stage not in self.unseen)


def leaders(
    view: SwarmView,
    stage: int,
    step: int,
    *,
    among: Collection[PeerId] = (),
) -> list[PeerId]:
    """Return the serving replicas of ``stage`` in ``view`` in the order in which they lead the
    round of ``step``.

    Replicas ``among`` the stage's roll come alone, if any of them serves, the lowest rank first: a
    replica that only claims to serve must be in a round before it leads one. A replica more than
    one step behind cannot lead before it has fetched the state. Every replica computes the
    order from its own view. While views differ two may lead, which costs an attempt but never
    exactness (protocol/SPEC.md, section 10).
    """
    peers = [replica.peer for replica in view.serving(stage) if replica.version >= step - 1]
    proven = [peer for peer in peers if peer in among]
    return list(_by_rank(stage, step, *(proven or peers)))


@lru_cache(maxsize=64)
def _by_rank(stage: int, step: int, *peers: PeerId) -> tuple[PeerId, ...]:
    return tuple(sorted(peers, key=lambda peer: rank("leader", stage, step, peer)))
