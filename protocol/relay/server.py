"""The relay's side: who may reserve, which circuits come about, and when they end.

A member that nobody can dial reserves a place at a relay, on a link that it keeps. A peer that
wants to reach it asks the relay to connect it; the relay asks the member, and if that agrees,
passes bytes on between the two. The machine sees no byte of them.

Methods take what happens, with the clock, and return what is to be done. State, all bounded:
reservations, circuits, and how often peers have asked. Each ends with its stream. Identities
come from the links alone, so nobody reserves in another's name, and a link that is itself relayed
gets neither reservations nor circuits, so relays form no loops.

Identities cost nothing, so places are shared out by address as well: the peers of one prefix get a
quarter of them. And nobody is made unreachable by those who ask for it: one asker has few circuits
to one target and asks for it rarely, and strangers' requests do not use up the members'.
"""

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from protocol.effects import Penalise
from protocol.ids import PeerId
from protocol.relay.messages import Code, Connect, Reserve, Status, Stop, WhereIs
from protocol.token_bucket import Rate, TokenBuckets

ASKS: Final = Rate(2.0, 64)
ASKS_OF_STRANGERS: Final = Rate(0.5, 8)
ASKS_OF_PAIR: Final = Rate(0.05, 8)
MAX_ASKS: Final = 4096
"""Buckets of requests that are remembered; the one unused for longest is forgotten."""


@dataclass(frozen=True)
class RelayLimits:
    """Bounds of one relay.

    Attributes:
        reservations: members that may be reached through it.
        circuits: in all, half-made ones included.
        circuits_of_member: between one member and any others.
        circuits_of_pair: between the same two; one may not have noticed the end of another.
        circuits_of_strangers: asked for by peers that are no members yet, together.
        prefix_share: of reservations, of circuits asked for and of strangers' circuits, what the
            peers of one prefix get together.
        stranger_s: longest life of a circuit whose asker does not become a member.
        asks: requests of one peer, refused ones included; and circuits to one target, whichever
            members ask for them.
        asks_of_strangers: circuits to one target, whichever strangers ask for them.
        asks_of_pair: the same of one asker for one target: it may dial again now and then. Of the
            two before, the peers of one prefix get ``prefix_share``.
    """

    reservations: int = 128
    circuits: int = 256
    circuits_of_member: int = 32
    circuits_of_pair: int = 4
    circuits_of_strangers: int = 8
    prefix_share: float = 0.25
    stranger_s: float = 60.0
    asks: Rate = ASKS
    asks_of_strangers: Rate = ASKS_OF_STRANGERS
    asks_of_pair: Rate = ASKS_OF_PAIR


@dataclass(slots=True, eq=False)
class Asked:
    """A peer has opened a stream with a request; what comes of it ends with the stream.

    Attributes:
        member: whether the peer is a member.
        relayed: whether its link with us goes through a relay.
        prefix: its address, as far as it is judged together with others; empty: by itself.
        agreed: whether the target of a circuit has agreed; then bytes are passed on.
        until: when it ends at the latest, unless we leave.
    """

    peer: PeerId
    message: Reserve | Connect | WhereIs
    member: bool
    relayed: bool = False
    prefix: str = ""
    agreed: bool = False
    until: float = math.inf

    @property
    def ends(self) -> set[str]:
        """Both ends of a circuit."""
        other = self.peer if isinstance(self.message, Reserve) else self.message.target
        return {self.peer, other}


Reply = tuple[Status | Stop, Penalise | None]
"""What is answered, or asked of the target of a circuit before; and whom to blame."""


@dataclass
class RelayServer:
    """See the module's docstring.

    Attributes:
        refused: requests that were refused, by reason.
        passed_bytes: of all circuits; whoever passes them on counts them.
    """

    own: PeerId
    limits: RelayLimits = field(default_factory=RelayLimits)
    refused: Counter[str] = field(default_factory=Counter)
    passed_bytes: int = 0
    offers: bool = False
    """Whether we relay."""
    _until: float = math.inf
    """When all circuits end, if we no longer relay."""
    _reservations: dict[PeerId, Asked] = field(default_factory=dict)
    _circuits: set[Asked] = field(default_factory=set)
    _asks: TokenBuckets[tuple[str, ...]] = field(default_factory=lambda: TokenBuckets(MAX_ASKS))
    """By asker, by target, and by both; they outlive links, or who comes again would begin anew."""

    @property
    def reservations(self) -> frozenset[PeerId]:
        """The members that are reached through us."""
        return frozenset(self._reservations)

    @property
    def circuits(self) -> int:
        """The circuits there are, half-made ones included."""
        return len(self._circuits)

    # --- what happens ------------------------------------------------------------------------

    def asked(self, asked: Asked, now: float) -> Reply:
        """A peer has opened a stream with a request."""
        if not self._asks.take({("of", asked.peer): self.limits.asks}, now):
            return self._refuse("too-often", Penalise(asked.peer, "relay-flood", 10))
        if asked.relayed:
            return self._refuse("over-a-circuit", Penalise(asked.peer, "relay-loop", 10))
        if isinstance(asked.message, Reserve):
            return self._on_reserve(asked)
        if isinstance(asked.message, WhereIs):
            return self._on_where(asked)
        return self._on_connect(asked, asked.message, now)

    def ended(self, asked: Asked) -> None:
        """The stream of a request has ended."""
        self._circuits.discard(asked)
        if self._reservations.get(asked.peer) is asked:
            del self._reservations[asked.peer]

    def admitted(self, peer: PeerId) -> None:
        """A stranger has become a member."""
        for circuit in self._circuits:
            if circuit.peer == peer:
                circuit.member, circuit.until = True, math.inf

    def offer(self) -> None:
        """Relay from now on."""
        self.offers, self._until = True, math.inf

    def drain(self, drain_s: float, now: float) -> None:
        """Relay no longer: all ends in ``drain_s``. Members see it in our advert."""
        if self.offers:
            self.offers, self._until = False, now + drain_s

    def is_over(self, asked: Asked, now: float) -> bool:
        """Whether a circuit or a reservation has to end, or its peer has a later one; what was
        refused only ends."""
        held = self._reservations.get(asked.peer) if isinstance(asked.message, Reserve) else asked
        return held not in (None, asked) or now >= min(asked.until, self._until)

    # --- inside ------------------------------------------------------------------------------

    def _on_reserve(self, asked: Asked) -> Reply:
        peer = asked.peer
        if not self.offers:
            return self._refuse("not-offered")
        if not asked.member:
            return self._refuse("not-a-member")
        if peer not in self._reservations and self._has_no_place(asked.prefix):
            return self._refuse("full")
        self._reservations[peer] = asked
        return Status("ok"), None

    def _has_no_place(self, prefix: str) -> bool:
        most = self.limits.reservations
        near = sum(bool(prefix) and held.prefix == prefix for held in self._reservations.values())
        return len(self._reservations) >= most or near >= self._share(most)

    def _share(self, most: int) -> int:
        return max(1, int(self.limits.prefix_share * most))

    def _on_where(self, asked: Asked) -> Reply:
        if not asked.member:
            return self._refuse("not-a-member")
        if not any(one.agreed and one.ends == asked.ends for one in self._circuits):
            return self._refuse("no-circuit")
        return Status("ok"), None

    def _on_connect(self, asked: Asked, message: Connect, now: float) -> Reply:
        asker, target = asked.peer, PeerId(message.target)
        if target in (asker, self.own):
            return self._refuse("own-circuit", Penalise(asker, "own-circuit", 10))
        if target not in self._reservations or now >= self._until:
            return self._refuse("no-reservation")
        limits = self.limits
        if not self._asks.take({("pair", asker, target): limits.asks_of_pair}, now):
            return self._refuse("too-often", Penalise(asker, "relay-flood", 2))
        if self._is_full(asked):
            return self._refuse("full")
        whose, rate = ("for", limits.asks)
        if not asked.member:
            whose, rate = ("strangers-for", limits.asks_of_strangers)
        share = Rate(limits.prefix_share * rate.per_s, limits.prefix_share * rate.burst)
        if asked.prefix and not self._asks.take({(whose, target, asked.prefix): share}, now):
            return self._refuse("too-often")
        if not self._asks.take({(whose, target): rate}, now):
            return self._refuse("too-often")
        asked.until = math.inf if asked.member else now + limits.stranger_s
        self._circuits.add(asked)
        return Stop(asker), None

    def _is_full(self, asked: Asked) -> bool:
        """Whether one of the bounds that a circuit would count for is reached."""
        limits, circuits = self.limits, self._circuits
        near = [one for one in circuits if asked.prefix and one.prefix == asked.prefix]
        pair = sum(one.ends == asked.ends for one in circuits)
        of = Counter(peer for one in circuits for peer in one.ends)
        counted = [
            (len(circuits), limits.circuits),
            (len(near), self._share(limits.circuits)),
            (max(of[peer] for peer in asked.ends), limits.circuits_of_member),
            (pair, limits.circuits_of_pair),
        ]
        if not asked.member:
            most = limits.circuits_of_strangers
            counted.append((sum(not one.member for one in circuits), most))
            counted.append((sum(not one.member for one in near), self._share(most)))
        return any(found >= most for found, most in counted)

    def _refuse(self, code: Code, blame: Penalise | None = None) -> Reply:
        self.refused[code] += 1
        return Status(code), blame
