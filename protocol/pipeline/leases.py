"""Leases: the leader of stage 0 hands out a step's microbatches to the replicas that ask.

Work pulling: a fast replica asks more often, so speed decides the share. A lease whose holder dies
goes back to the pool. Only the leader of a step has a ``LeaseBook``; a successor rebuilds it from
the replicas' ledger reports. Near the end of a step a lease may get a second holder (``backups``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping

from protocol.ids import PeerId


class LeaseBook:
    """The leases of one step: which replica works on which microbatch."""

    def __init__(self, ids: range) -> None:
        self._free = sorted(ids, reverse=True)  # popped from the end: oldest id first
        self._holder: dict[int, PeerId] = {}
        self._held: Counter[PeerId] = Counter()
        """How many of these each holds."""
        self._backup: dict[int, PeerId] = {}
        self._waiting: dict[PeerId, int] = {}
        self._again: set[int] = set()

    def ask(self, peer: PeerId, want: int) -> None:
        """Note that ``peer`` can take ``want`` more; a later call replaces an earlier one."""
        self._waiting.pop(peer, None)
        self._waiting[peer] = want

    def held(self, peer: PeerId) -> int:
        """Return how many microbatches a peer was leased."""
        return self._held[peer]

    def _give(self, microbatch: int, peer: PeerId) -> None:
        """No other replica holds it from now on."""
        self._take(microbatch)
        self._holder[microbatch] = peer
        self._held[peer] += 1

    def _take(self, microbatch: int) -> None:
        """No replica holds it from now on."""
        if (before := self._holder.pop(microbatch, None)) is not None:
            self._held[before] -= 1

    def forget(self, peer: PeerId) -> None:
        """It asks for nothing any more."""
        self._waiting.pop(peer, None)

    def claim(self, peer: PeerId, ids: Collection[int]) -> None:
        """Record ids that ``peer`` reports as done or in flight (the first claim stands)."""
        taken = set(ids)
        self._free = [m for m in self._free if m not in taken]
        for microbatch in taken:
            if microbatch not in self._holder:
                self._give(microbatch, peer)

    def release(self, peer: PeerId) -> list[int]:
        """Return a dead peer's microbatches to the pool; return their ids.

        A microbatch with two holders is also freed, because the other may have left it to the dead
        peer. A replica that reports it later claims it again.
        """
        self._waiting.pop(peer, None)
        lost = [m for m, h in self._holder.items() if peer in (h, self._backup.get(m))]
        for microbatch in lost:
            self._take(microbatch)
            self._backup.pop(microbatch, None)
        self._again.update(lost)
        self._free = sorted([*self._free, *lost], reverse=True)
        return sorted(lost)

    def hand_over(self, microbatch: int, to: PeerId | None) -> None:
        """Its holder has given a microbatch up to another one; None: no live one."""
        if to is not None:
            self._give(microbatch, to)
        else:
            self.reclaim(frozenset(self._holder.keys() - {microbatch}))

    def taken_over(self) -> None:
        """A leader before us may have leased what is free here."""
        self._again.update(self._free)

    def reclaim(self, known: frozenset[int]) -> None:
        """Return leased ids that are not ``known`` to anyone to the pool."""
        stray = [m for m in self._holder if m not in known]
        for microbatch in stray:
            self._take(microbatch)
            self._backup.pop(microbatch, None)
        self._again.update(stray)
        self._free = sorted([*self._free, *stray], reverse=True)

    def grant(
        self, may_have: Callable[[PeerId, Mapping[PeerId, int]], bool] = lambda _peer, _held: True
    ) -> list[tuple[PeerId, bool, list[int]]]:
        """Hand out what is free, one id per waiting peer in turn.

        Args:
            may_have: whether a peer may have one more, with how many each has; the others wait.

        Returns:
            Triples of the peer, whether the ids were leased before, and the ids.
        """
        granted: dict[tuple[PeerId, bool], list[int]] = {}
        while self._free:
            peer = next((p for p in self._waiting if may_have(p, self._held)), None)
            if peer is None:
                break
            want = self._waiting.pop(peer)
            microbatch = self._free.pop()
            self._give(microbatch, peer)
            granted.setdefault((peer, microbatch in self._again), []).append(microbatch)
            if want > 1:
                self._waiting[peer] = want - 1
        return [(peer, again, ids) for (peer, again), ids in granted.items()]

    def double(self, microbatch: int, peer: PeerId) -> None:
        """Lease to a waiting peer what another one holds; it may have that one instead of one of
        those it asked for."""
        self._backup[microbatch] = peer
        want = self._waiting.pop(peer, 1)
        if want > 1:
            self._waiting[peer] = want - 1

    def waiting(self) -> list[PeerId]:
        """Return the replicas whose requests are not met, longest wait first."""
        return list(self._waiting)

    def holder(self, microbatch: int) -> PeerId | None:
        """Return the holder of a microbatch, None while it is in the pool."""
        return self._holder.get(microbatch)

    @property
    def free(self) -> int:
        """Number of microbatches without a holder."""
        return len(self._free)
