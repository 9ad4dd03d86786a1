"""Newcomers of a stage: how much of a step they get before their work was audited.

In a run with audits a replica that comes to a stage later than we have seen others there is a
*newcomer*, until more than half of the others that are there name it as audited in agreement. As
long as it is one:

- it gets an equal share of a step, and as much again for each of them that names it;
- those that nobody names get half of a step together, however many they are;
- the rest is for the others as long as they take it: work never waits for long.

Nobody is a newcomer where all have begun together: of a stage of newcomers alone none is slowed.

State: who is none, for one stage. Pure, no clock.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from protocol.ids import PeerId
from protocol.view import Replica

TOGETHER: Final = 0.5
MAX_KNOWN: Final = 256


@dataclass(frozen=True, slots=True)
class Bound:
    """What the newcomers of a stage may have now.

    Fields:
        named: the newcomers, and how many replicas that are none have audited each in agreement.
        others: replicas that are none.
    """

    named: Mapping[PeerId, int] = field(default_factory=dict)
    others: int = 0

    @property
    def replicas(self) -> int:
        """All of the stage."""
        return self.others + len(self.named)

    def most(self, peer: PeerId, per_step: int) -> int:
        """Return how many microbatches of a step a newcomer gets by itself, at least one."""
        equal = per_step / self.replicas
        return min(per_step, max(1, math.floor(equal * (1 + self.named[peer]))))

    def allows(self, peer: PeerId, held: Mapping[PeerId, int], per_step: int) -> bool:
        """Whether a replica may have one more microbatch of a step.

        Args:
            peer: who it is.
            held: how many each has had of the step.
            per_step: microbatches of the step; for a sender, of those it has sent lately.
        """
        if peer not in self.named:
            return True
        if held.get(peer, 0) >= self.most(peer, per_step):
            return False
        if self.named[peer]:
            return True
        together = sum(held.get(p, 0) for p, named in self.named.items() if not named)
        return together < max(1, math.floor(TOGETHER * per_step))


NOBODY: Final = Bound()


class Newcomers:
    """Those of one stage; see the module's docstring.

    Args:
        active: whether the run has audits; without them nobody is a newcomer.
    """

    def __init__(self, *, active: bool) -> None:
        self._active, self._settled = active, False
        self._known: dict[PeerId, None] = {}
        self.bound = NOBODY

    def settle(self) -> None:
        """We have closed a step with those that are there: who comes now is a newcomer."""
        self._settled = True

    def update(self, replicas: Sequence[Replica]) -> Bound:
        """Take the stage's serving replicas; return what newcomers among them may have."""
        if not self._active:
            return NOBODY
        here = {replica.peer for replica in replicas}
        if not self._settled or not here & self._known.keys():
            self._know(here)
        while True:
            named = self._named(replicas)
            others = len(here) - len(named)
            audited = {peer for peer, count in named.items() if 2 * count > others}
            if not audited:
                break
            self._know(audited)
        self.bound = Bound(named, others) if named else NOBODY
        return self.bound

    def _named(self, replicas: Sequence[Replica]) -> dict[PeerId, int]:
        named = {r.peer: 0 for r in replicas if r.peer not in self._known}
        for replica in replicas:
            if replica.peer in self._known:
                for peer in set(replica.audited) & named.keys():
                    named[peer] += 1
        return named

    def _know(self, peers: set[PeerId]) -> None:
        self._known |= dict.fromkeys(sorted(peers))
        for peer in list(self._known)[:-MAX_KNOWN]:
            del self._known[peer]
