"""The side of a member that nobody can dial: at which relays it keeps a reservation.

It keeps two, at relays of different prefixes where there are such, so that the end of one relay
cuts off nobody. A relay that refuses, at first or later, is left alone for a while: it could change
our addresses without end. After five minutes a reservation goes on where it would be made now, and
not where there is a better relay; the place of one that relays no more is filled at once.

Inputs: the relays there are and whether we need any, answers, ends of reservations; all with the
clock. Each returns the relays to ask for a reservation; whoever asks connects first if need be, and
ends those that are not among ``relays`` any more. State, all bounded: the reservations and
requests, at most two each beside those that lapse, and the relays that were of no use lately.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from protocol.ids import PeerId
from protocol.pace import ASIDE_S, SETTLED_S

RELAYS: Final = 2
"""Reservations that are kept."""
REVIEW_S: Final = SETTLED_S
"""A reservation is as good as a new one for so long; one that is not wanted any more is kept for as
long again, while others have an address of ours from before."""
MAX_AVOIDED: Final = 1024


@dataclass
class RelayClient:
    """See the module's docstring."""

    _needed: bool = False
    _candidates: Mapping[PeerId, str] = field(default_factory=dict)
    """The prefix of each relay, the best relay first."""
    _held: dict[PeerId, float] = field(default_factory=dict)
    """Reservations, and when each is reviewed."""
    _lapsing: dict[PeerId, float] = field(default_factory=dict)
    """Reservations whose place is filled, or is to be, and when each ends."""
    _asked: list[PeerId] = field(default_factory=list)
    """Relays that are being asked: each answers, or it is said that it does not."""
    _asked_before: set[PeerId] = field(default_factory=set)
    """Of these, those that were asked before our network changed."""
    _avoided: dict[PeerId, float] = field(default_factory=dict)

    @property
    def relays(self) -> tuple[PeerId, ...]:
        """The relays through which we are reached, those that leave last."""
        return (*sorted(self._held), *sorted(self._lapsing))

    @property
    def needed(self) -> tuple[PeerId, ...]:
        """The relays with which we want a link: those we reserved at, or ask now."""
        return (*self.relays, *self._asked)

    def update(self, candidates: Mapping[PeerId, str], needed: bool, now: float) -> list[PeerId]:
        """Set the members that relay, by prefix, and whether nobody can dial us."""
        self._needed, self._candidates = needed, candidates
        for relay in self._held.keys() - candidates.keys():
            self._lapse(relay, now)
        return self.tick(now)

    def answered(self, relay: PeerId, granted: bool, now: float) -> list[PeerId]:
        """A relay has reserved a place for us, or refused, could not be asked or did not answer."""
        if relay not in self._asked:
            return []
        self._asked.remove(relay)
        if not granted:
            self._avoid(relay, now)
            return self.tick(now)
        self._asked_before.discard(relay)
        self._held[relay] = now + REVIEW_S
        return []

    def lost(self, relay: PeerId, now: float, *, refused: bool = False) -> list[PeerId]:
        """A reservation has ended; ``refused``: the relay has ended it, and its link goes on."""
        self._held.pop(relay, None)
        self._lapsing.pop(relay, None)
        if refused:
            self._avoid(relay, now)
        return self.tick(now)

    def renew(self, now: float) -> list[PeerId]:
        """Our network has changed: what kept relays from answering may be over. Those that are
        being asked are asked again if nothing comes of it."""
        self._avoided.clear()
        self._asked_before = set(self._asked)
        return self.tick(now)

    def tick(self, now: float) -> list[PeerId]:
        """Review, give up what has lapsed, and ask further relays as needed. Call it often."""
        self._avoided = {relay: at for relay, at in self._avoided.items() if at > now}
        self._lapsing = {relay: at for relay, at in self._lapsing.items() if at > now}
        if not self._needed:
            self._held, self._lapsing = {}, {}
            return []
        for relay in [relay for relay, review_at in self._held.items() if review_at <= now]:
            self._lapse(relay, now)
        requests = []
        for relay in self._further():
            if self._lapsing.pop(relay, None) is None:
                requests.append(relay)
            else:
                self._held[relay] = now + REVIEW_S
        self._asked += requests
        return requests

    def _lapse(self, relay: PeerId, now: float) -> None:
        """Count on a reservation no more."""
        del self._held[relay]
        self._lapsing[relay] = now + REVIEW_S

    def _further(self) -> list[PeerId]:
        """Return the relays to reserve at beside those that we count on, or ask."""
        chosen: list[PeerId] = []
        while len(standing := [*self._held, *self._asked, *chosen]) < RELAYS:
            near = {self._candidates.get(relay) for relay in standing}
            free = [
                relay
                for relay in self._candidates
                if relay not in standing and relay not in self._avoided
            ]
            best = min(free, key=lambda relay: self._candidates[relay] in near, default=None)
            if best is None:
                break
            chosen.append(best)
        return chosen

    def _avoid(self, relay: PeerId, now: float) -> None:
        if relay in self._asked_before:
            self._asked_before.discard(relay)
            return
        self._avoided.pop(relay, None)
        if len(self._avoided) >= MAX_AVOIDED:
            del self._avoided[next(iter(self._avoided))]
        self._avoided[relay] = now + ASIDE_S
