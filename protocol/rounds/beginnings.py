"""Beginnings: whom a replica met in a lineage before the first plan, kept over its process.

From the first plan on a plan says who the electors are (``quorum.py``). Before it they are the
replicas that each one has seen, so a process that starts again would know only whom it meets then.
Meanwhile those that it knew before may have closed the lineage's first step and left for a later
lineage, and two that have both started again would close it a second time. So a seat says whom it
has met (``KeepMet``), which is on disk before the seat acts on it; the next seat in that stage and
lineage, of this process or of a later one, begins with these electors. This is the durable
partition set of dynamic voting (Jajodia and Mutchler 1990).

In the first lineage, which begins at the seed, nobody waits for those that it met in an earlier
process as long as nobody serves anything: the run then begins with whoever is here, as a run of
friends does who came, tried it and went. In every later lineage such a volunteer begins another
one, for it resumes (``recovery/machine.py``). State: the last lineages, bounded.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Final

from msgspec import Meta, Struct

from protocol import limits
from protocol.ids import PeerId
from protocol.wire.fields import Era, PeerText, StageIndex

MAX_MET: Final = 2 * limits.MAX_REPLICAS_IN_ROUND
"""Electors that are kept of one beginning; invented members may be more, and come after them."""
MAX_BEGINNINGS: Final = 32
"""Four lineages of eight stages; the oldest is forgotten."""


class Met(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The replicas that count at a lineage's first step, as far as one of them has seen."""

    stage: StageIndex
    era: Era
    roll: Annotated[tuple[PeerText, ...], Meta(max_length=MAX_MET)] = ()
    """Those of the stage, ourselves included."""
    electors: Annotated[tuple[PeerText, ...], Meta(max_length=MAX_MET)] = ()
    """Those of the stage and of the ones beside it."""

    def covers(self, other: Met) -> bool:
        """Whether it has everybody that another one has."""
        return {*self.roll} >= {*other.roll} and {*self.electors} >= {*other.electors}


class Beginnings:
    """See the module's docstring.

    Args:
        kept: what the process before has written down.
    """

    def __init__(self, kept: Iterable[Met] = ()) -> None:
        self._met = {(met.stage, met.era): met for met in kept}
        self._of_this_process = set[tuple[int, int]]()

    @property
    def kept(self) -> tuple[Met, ...]:
        """Everything that the next process has to know."""
        return tuple(self._met.values())

    def met(self, stage: int, era: int, *, afresh: bool = False) -> Met:
        """Return whom our earlier seats have met at the beginning of a lineage; nobody if there
        were none. ``afresh``: only those of this process count."""
        nobody = Met(stage, era)
        if afresh and (stage, era) not in self._of_this_process:
            return nobody
        return self._met.get((stage, era), nobody)

    def keep(self, met: Met) -> None:
        """Take whom a seat of ours has met; from now on it is this."""
        key = met.stage, met.era
        self._met.pop(key, None)
        if len(self._met) >= MAX_BEGINNINGS:
            del self._met[next(iter(self._met))]
        self._met[key] = met
        self._of_this_process = (self._of_this_process | {key}) & self._met.keys()


def bounded(peers: Iterable[PeerId], before: Iterable[str]) -> tuple[PeerId, ...]:
    """Return at most ``MAX_MET`` of the ``peers``, those that were known ``before`` first."""
    known = {*before}
    return tuple(sorted(sorted(peers, key=lambda peer: (peer not in known, peer))[:MAX_MET]))
