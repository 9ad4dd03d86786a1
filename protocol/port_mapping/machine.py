"""Port mapping: which router is asked for what, and when. Pure; the clock is passed in.

All ways are tried side by side, for a router speaks both, one or none of them. The first mapping is
kept; one that another way makes besides it is given back. A mapping is leased for an hour and
renewed after half of what the router grants. A port that is somebody else's is replaced by another
one. While nothing maps, all ways are tried again, after a minute at first and then more rarely; and
at once when the network has changed. A router that has restarted may have forgotten what we hold,
so that is renewed when our links were interrupted. What we hold is given back when it is no longer
wanted.

State: our port, the mapping that we hold, which ways are being asked, and when to ask again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from protocol.pace import ASIDE_S
from protocol.port_mapping.mapped import WAYS, Mapped, Way

LEASE_S: Final = 3600
"""Routers grant so much, and one that has restarted meanwhile is asked again soon enough."""


@dataclass(frozen=True, slots=True)
class AskMapping:
    """Ask for a mapping or its renewal; the answer is ``mapped`` or ``refused``."""

    way: Way
    own_port: int
    outer_port: int
    lease_s: int = LEASE_S


@dataclass(frozen=True, slots=True)
class EndMapping:
    """Give a mapping back; nobody waits for the answer."""

    way: Way
    own_port: int
    outer_port: int


MappingEffect = AskMapping | EndMapping


@dataclass(slots=True)
class _Held:
    way: Way
    mapped: Mapped
    renew_at: float
    ends_at: float


class PortMapping:
    """See the module's docstring.

    Args:
        others: outer ports to wish for when ours is somebody else's, the first one first.
        ways: all that may be asked.
    """

    def __init__(self, others: Sequence[int], ways: Sequence[Way] = WAYS) -> None:
        self._others, self._ways = tuple(others), tuple(ways)
        self._own_port: int | None = None
        self._held: _Held | None = None
        self._asking: dict[Way, AskMapping] = {}
        self._tried: dict[Way, int] = {}
        self._again_at = 0.0
        self._retry_s = ASIDE_S
        self.reasons: dict[Way, str] = {}
        """Why a way does not map, for those that were asked last."""

    @property
    def held(self) -> Mapped | None:
        """The mapping that we hold."""
        return self._held.mapped if self._held is not None else None

    @property
    def way(self) -> Way | None:
        """How it was made."""
        return self._held.way if self._held is not None else None

    def want(self, own_port: int | None, now: float) -> list[MappingEffect]:
        """Set the port to be reached; None: none is wanted."""
        if own_port == self._own_port:
            return []
        ended = self._end()
        self._own_port = own_port
        return [*ended, *self._begin(now)]

    def moved(self, now: float) -> list[MappingEffect]:
        """This machine is in another network: what its old router holds ends by itself."""
        self._held = None
        return self._begin(now)

    def renew(self, now: float) -> None:
        """Our router may have forgotten what we hold, or map now what it did not: ask again at the
        next tick."""
        self._retry_s = ASIDE_S
        self._again_at = now
        if self._held is not None:
            self._held.renew_at = now

    def mapped(self, way: Way, mapped: Mapped, now: float) -> list[MappingEffect]:
        """A router has mapped a port."""
        asked = self._asking.pop(way, None)
        if asked is None or asked.own_port != self._own_port:
            return [EndMapping(way, asked.own_port, mapped.port)] if asked is not None else []
        self.reasons.pop(way, None)
        if self._held is not None and self._held.way != way:
            same = (mapped.host, mapped.port) == (self._held.mapped.host, self._held.mapped.port)
            return [] if same else [EndMapping(way, asked.own_port, mapped.port)]
        # a router that grants less is asked as rarely as one that refuses
        lease_s = max(mapped.lease_s, 2 * ASIDE_S)
        self._held = _Held(way, mapped, now + lease_s / 2, now + lease_s)
        self._retry_s = ASIDE_S
        return []

    def refused(self, way: Way, reason: str, now: float, *, conflict: bool) -> list[MappingEffect]:
        """A router does not map, or nobody answers."""
        asked = self._asking.pop(way, None)
        if asked is None or asked.own_port != self._own_port:
            return []
        self.reasons[way] = reason
        tried = self._tried.get(way, 0)
        if conflict and tried < len(self._others):
            self._tried[way] = tried + 1
            return [self._ask(way, self._others[tried])]
        if self._held is not None and self._held.way == way:
            self._held.renew_at = min(now + ASIDE_S, self._held.ends_at)
        return []

    def tick(self, now: float) -> list[MappingEffect]:
        """Renew, try again, or give up what has ended."""
        held = self._held
        if held is not None and now >= held.ends_at:
            self._held = None
            return self._begin(now)
        if held is not None:
            if now < held.renew_at or held.way in self._asking:
                return []
            return [self._ask(held.way, held.mapped.port)]
        if self._own_port is None or self._asking or now < self._again_at:
            return []
        return self._begin(now)

    def close(self) -> list[MappingEffect]:
        """Give back what we hold."""
        ended = self._end()
        self._own_port = None
        return ended

    def _begin(self, now: float) -> list[MappingEffect]:
        """Ask by all ways; whoever is being asked still answers to the old question."""
        self._tried.clear()
        self._again_at = now + self._retry_s
        self._retry_s = min(2 * self._retry_s, LEASE_S / 2)  # a mapping is renewed as often
        if self._own_port is None:
            return []
        return [self._ask(way, self._own_port) for way in self._ways]

    def _ask(self, way: Way, outer_port: int) -> AskMapping:
        assert self._own_port is not None
        asked = self._asking[way] = AskMapping(way, self._own_port, outer_port)
        return asked

    def _end(self) -> list[MappingEffect]:
        held, self._held = self._held, None
        if held is None or self._own_port is None:
            return []
        return [EndMapping(held.way, self._own_port, held.mapped.port)]
