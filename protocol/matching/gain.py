"""The one rule by which somebody gives a place up for another stage.

A change pays if the worst of the stages that it touches is better off afterwards: replicas up to r
come first, then the level. For a tentative place any rise will do; an incumbent's change costs a
download, so the level must rise by a twentieth, and the lowest of all stages must not fall.
"""

from collections.abc import Iterator
from heapq import nlargest

import msgspec

from protocol.ids import PeerId, Stage
from protocol.matching.population import Population
from protocol.matching.supply import Standing, Supply

CLEARLY_PERCENT = 105
CLOSELY = 32
"""So many candidates, by a cheap estimate the best, are judged exactly."""


class Change(msgspec.Struct, frozen=True):
    """One member's change from some stages to others: its home, and one beside it if it has one."""

    peer: PeerId
    before: tuple[Stage, ...]
    after: tuple[Stage, ...]

    @property
    def to(self) -> Stage:
        """The new stage."""
        (stage,) = set(self.after) - set(self.before)
        return stage

    @property
    def gives_up(self) -> frozenset[Stage]:
        """The stages that lose a replica."""
        return frozenset(self.before) - frozenset(self.after)

    def objection(self, population: Population) -> str | None:
        """Return why the change does not pay, or None if it does."""
        if not population.rate(self.peer, self.to):
            return "this machine is too small for it"
        touched, supply = (*self.gives_up, self.to), population.supply
        after = self._outcome(population)
        was, is_now = min(map(supply.standing, touched)), min(map(after.standing, touched))
        if is_now.covered > was.covered:
            return None
        for stage in sorted(self.gives_up):
            if supply.copies[stage] <= supply.r:
                return f"stage {stage} has no replica to spare"
        lowest, then = min(supply.levels), min(after.levels)
        clearly = then * 100 > lowest * CLEARLY_PERCENT or is_now.exceeds(was, CLEARLY_PERCENT)
        return None if clearly and then >= lowest else "the lowest stage would not rise"

    def worth(self, population: Population) -> tuple[int, int, Standing, PeerId]:
        """Return a sort key, largest best: replicas, then the lowest level of all, then that of the
        stages concerned."""
        after = self._outcome(population)
        low = min(map(after.standing, (*self.gives_up, self.to)))
        return low.covered, min(after.levels), low, self.peer

    def _outcome(self, population: Population) -> Supply:
        rates = population.rates(self.peer)
        return population.supply.after(self.before, rates, sign=-1).after(self.after, rates)


def changes(population: Population, peer: PeerId, to: Stage) -> Iterator[Change]:
    """Yield the changes by which a member at rest could come to a stage: with its second seat if
    the stage is beside its home, and with its home."""
    member = population.members.get(peer)
    home = member.home_stage if member else None
    if member is None or home is None or to in member.held or member.fetching:
        return
    second = member.second
    before = (home,) if second is None else (home, second)
    if second is not None and abs(home - to) == 1 and population.fits_both(peer, home, to):
        yield Change(peer, before, (home, to))
    keeps = second is not None and abs(second - to) == 1 and population.fits_both(peer, to, second)
    yield Change(peer, before, (to, *before[1:]) if keeps else (to,))


def paying(population: Population, to: Stage) -> list[Change]:
    """Return the changes to one stage that would pay, the best first."""
    supply = population.supply
    needs = supply.standing(to)
    better_off = [Stage(s) for s in population.stages if supply.standing(Stage(s)) > needs]
    peers = frozenset[PeerId]().union(*map(population.holders, better_off))
    possible = [c for peer in peers for c in changes(population, peer, to)]
    likely = nlargest(CLOSELY, possible, key=lambda c: _estimate(population, c))
    good = [change for change in likely if change.objection(population) is None]
    return sorted(good, key=lambda c: c.worth(population), reverse=True)


def _estimate(population: Population, change: Change) -> tuple[Standing, str]:
    """Return about how well off the worse of the touched stages would be."""
    supply, rates = population.supply, population.rates(change.peer)
    share = len(change.before)
    there = supply.levels[change.to] + rates[change.to] // len(change.after)
    found = Standing.of(supply.copies[change.to] + 1, there, supply.r)
    for stage in change.gives_up:
        level = supply.levels[stage] - rates[stage] // share
        found = min(found, Standing.of(supply.copies[stage] - 1, level, supply.r))
    return found, change.peer
