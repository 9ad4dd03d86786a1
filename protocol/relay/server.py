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


@dataclass(frozen=True, slots=True)
class Asked:
    """A peer has opened a stream, ``number``, with a request.

    Attributes:
        member: whether the peer is a member.
        relayed: whether its link with us goes through a relay.
        prefix: its address, as far as it is judged together with others; empty: by itself.
    """

    number: int
    peer: PeerId
    message: Reserve | Connect | WhereIs
    member: bool
    relayed: bool = False
    prefix: str = ""


Reply = tuple[Status | Stop, Penalise | None]
"""What is answered, or asked of the target of a circuit before; and whom to blame."""


@dataclass(slots=True)
class _Circuit:
    asker: PeerId
    target: PeerId
    prefix: str
    stranger: bool
    began: float
    open: bool = False


@dataclass(frozen=True, slots=True)
class _Reservation:
    number: int
    prefix: str


@dataclass
class RelayServer:
    """See the module's docstring.

    Attributes:
        refused: requests that were refused and circuits that were ended, by reason.
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
    _reservations: dict[PeerId, _Reservation] = field(default_factory=dict)
    _replaced: list[int] = field(default_factory=list)
    """Reservations in whose place the same peer has a later one; they are still to end."""
    _circuits: dict[int, _Circuit] = field(default_factory=dict)
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
            return self._on_where(asked, asked.message)
        return self._on_connect(asked, asked.message, now)

    def agreed(self, number: int, agrees: bool) -> bool:
        """The target of a circuit has answered, or could not be asked; return whether to pass bytes
        on between the two streams, once the asker has its answer."""
        circuit = self._circuits.get(number)
        if circuit is None:
            return False
        if not agrees:
            del self._circuits[number]
            self.refused["unreachable"] += 1
            return False
        circuit.open = True
        return True

    def ended(self, number: int) -> None:
        """A circuit or a reservation has ended."""
        self._circuits.pop(number, None)
        held = self._reservations
        self._reservations = {peer: one for peer, one in held.items() if one.number != number}

    def admitted(self, peer: PeerId) -> None:
        """A stranger has become a member."""
        for circuit in self._circuits.values():
            circuit.stranger = circuit.stranger and circuit.asker != peer

    def offer(self) -> None:
        """Relay from now on."""
        self.offers, self._until = True, math.inf

    def drain(self, drain_s: float, now: float) -> None:
        """Relay no longer: all ends in ``drain_s``. Members see it in our advert."""
        if self.offers:
            self.offers, self._until = False, now + drain_s

    def tick(self, now: float) -> list[int]:
        """Return the circuits and reservations to end, which are due. Call it often."""
        over, self._replaced = self._replaced, []
        over += [held.number for held in self._reservations.values() if now >= self._until]
        due = {
            number: "drained" if now >= self._until else "stranger"
            for number, one in self._circuits.items()
            if now >= self._until or (one.stranger and now >= one.began + self.limits.stranger_s)
        }
        return over + [self._end(number, reason) for number, reason in due.items()]

    # --- inside ------------------------------------------------------------------------------

    def _on_reserve(self, asked: Asked) -> Reply:
        peer = asked.peer
        if not self.offers:
            return self._refuse("not-offered")
        if not asked.member:
            return self._refuse("not-a-member")
        if peer not in self._reservations and self._has_no_place(asked.prefix):
            return self._refuse("full")
        if (before := self._reservations.get(peer)) is not None:
            self._replaced.append(before.number)
        self._reservations[peer] = _Reservation(asked.number, asked.prefix)
        return Status("ok"), None

    def _has_no_place(self, prefix: str) -> bool:
        most = self.limits.reservations
        near = sum(bool(prefix) and held.prefix == prefix for held in self._reservations.values())
        return len(self._reservations) >= most or near >= self._share(most)

    def _share(self, most: int) -> int:
        return max(1, int(self.limits.prefix_share * most))

    def _on_where(self, asked: Asked, message: WhereIs) -> Reply:
        if not asked.member:
            return self._refuse("not-a-member")
        ends = {(one.asker, one.target) for one in self._circuits.values() if one.open}
        if (asked.peer, message.target) not in ends:
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
        if self._is_full(asked, target):
            return self._refuse("full")
        whose, rate = ("for", limits.asks)
        if not asked.member:
            whose, rate = ("strangers-for", limits.asks_of_strangers)
        share = Rate(limits.prefix_share * rate.per_s, limits.prefix_share * rate.burst)
        if asked.prefix and not self._asks.take({(whose, target, asked.prefix): share}, now):
            return self._refuse("too-often")
        if not self._asks.take({(whose, target): rate}, now):
            return self._refuse("too-often")
        self._circuits[asked.number] = _Circuit(asker, target, asked.prefix, not asked.member, now)
        return Stop(asker), None

    def _is_full(self, asked: Asked, target: PeerId) -> bool:
        """Whether one of the bounds that a circuit would count for is reached."""
        limits, asker, circuits = self.limits, asked.peer, list(self._circuits.values())
        near = [one for one in circuits if asked.prefix and one.prefix == asked.prefix]
        pair = sum({asker, target} == {one.asker, one.target} for one in circuits)
        of = Counter(peer for one in circuits for peer in (one.asker, one.target))
        counted = [
            (len(circuits), limits.circuits),
            (len(near), self._share(limits.circuits)),
            (max(of[asker], of[target]), limits.circuits_of_member),
            (pair, limits.circuits_of_pair),
        ]
        if not asked.member:
            most = limits.circuits_of_strangers
            counted.append((sum(one.stranger for one in circuits), most))
            counted.append((sum(one.stranger for one in near), self._share(most)))
        return any(found >= most for found, most in counted)

    def _refuse(self, code: Code, blame: Penalise | None = None) -> Reply:
        self.refused[code] += 1
        return Status(code), blame

    def _end(self, number: int, reason: str) -> int:
        del self._circuits[number]
        self.refused[reason] += 1
        return number
