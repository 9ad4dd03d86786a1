"""Reachability: which of our addresses members of other networks reach.

Every linked peer tells us the address at which it sees us. From these, from our own public
addresses, from those that a router has mapped for us and those that the owner announces come the
*candidates*. Members that see us at a candidate's host are asked to dial its port from a fresh port
of theirs (``budgets``). Three of different prefixes have to agree, or all there are if there are
fewer: then the candidate is *public*, or *private*. Until then, and where the probers disagree,
nothing is known of it.

Each is probed again every 15 minutes, at once when our own addresses change, and after a minute
where fewer than three could be asked or they disagreed. Members in our own prefix are not asked:
they may be in our home. A peer that lies about where it sees us makes a candidate that nobody else
can be asked about. Of the hosts that peers name only those count that most prefixes name, so a
crowd of liars in one prefix takes no place from others. The port is always our own: where a router
passes on another one, the owner knows it, and announces it. State: the observations by peer, the
candidates, the probes under way. Pure.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Literal

from protocol.hosts import Outer, is_global, kind_of, prefix_of
from protocol.ids import PeerId
from protocol.pace import ASIDE_S, LONG_S, LOST_S

PROBERS: Final = 3
"""Probers of different prefixes that have to agree."""
MOST_PROBERS: Final = 5
"""Probers asked where they disagree."""
AGAIN_S: Final = LONG_S / 4
"""A router may let nobody in any more, and nothing tells of it."""
MAX_HOSTS: Final = 2
"""Observed hosts of one kind: a home may have two lines."""
MAX_CANDIDATES: Final = 8
MAX_OBSERVERS: Final = 128

Source = Literal["announced", "mapped", "interface", "observed"]
"""Where a candidate comes from; of several the first of these."""
Place = tuple[str, int]
"""A host, a number, and a port."""


class Verdict(Enum):
    """What is known of a candidate."""

    UNKNOWN = "unknown"
    PUBLIC = "public"
    PRIVATE = "private"


@dataclass(frozen=True, slots=True)
class Ends:
    """The ends of a link that goes through no other peer.

    Attributes:
        host: the peer's address, a number.
        own_port: our own port.
        dialled: whether we dialled.
        port: the peer's.
    """

    host: str
    own_port: int
    dialled: bool
    port: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Probe:
    """A peer is to be asked whether it reaches us at a place; each is answered once. Those of one
    prefix share an opinion."""

    peer: PeerId
    prefix: str
    place: Place


@dataclass(frozen=True, slots=True)
class _Observation:
    ends: Ends
    seen: Place


@dataclass(slots=True)
class Candidate:
    """An address that may be ours, and what is known of it; only the machine changes it."""

    place: Place
    source: Source
    since: float
    due: float
    verdict: Verdict = Verdict.UNKNOWN
    probers: int = 0
    """How many have agreed on the verdict."""
    probing: bool = False
    waiting: Probe | None = None
    """The probe under way."""
    said: dict[str, bool | None] = field(default_factory=dict)
    """Whether it has reached us, by the prober's prefix; None: it has not said so."""


class Reachability:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._observations: OrderedDict[PeerId, _Observation] = OrderedDict()
        self._candidates: dict[Place, Candidate] = {}
        self._own: frozenset[str] = frozenset()
        self._ports: Mapping[str, int] = {}
        self._given: dict[Place, Source] = {}

    # --- events ------------------------------------------------------------------------------

    def listens(
        self,
        hosts: Iterable[str],
        ports: Mapping[str, int],
        given: Mapping[Place, Source],
        now: float,
    ) -> None:
        """Note our present addresses: those of this machine's interfaces, as numbers, where we
        listen, by kind of host, and those that the owner or a router has ``given``."""
        own = frozenset(hosts)
        moved = own != self._own
        self._own, self._ports = own, dict(ports)
        self._given = {place: source for place, source in given.items() if is_global(place[0])}
        self._renew(now)
        if moved:
            self.renew(now)

    def renew(self, now: float) -> None:
        """Our way to the others has changed: probe all candidates again."""
        for candidate in self._candidates.values():
            candidate.due = now

    def observed(self, peer: PeerId, ends: Ends, seen: Place, now: float) -> None:
        """A linked peer says where it sees us; what no other network can see is no observation."""
        self._observations.pop(peer, None)
        if is_global(seen[0]) and is_global(ends.host) and kind_of(seen[0]) == kind_of(ends.host):
            self._observations[peer] = _Observation(ends, seen)
            if len(self._observations) > MAX_OBSERVERS:
                self._forget_one()
        self._renew(now)
        for candidate in self._candidates.values():
            if 0 < candidate.probers < PROBERS <= len(self._probers(candidate.place[0])):
                candidate.due = min(candidate.due, now)  # there are enough now

    def gone(self, peer: PeerId, now: float) -> None:
        """A link has ended."""
        self._observations.pop(peer, None)
        self._renew(now)

    def probed(self, probe: Probe, reached: bool | None) -> None:
        """A prober answers; None: it would not dial, or does not answer."""
        candidate = self._candidates.get(probe.place)
        if candidate is not None and candidate.waiting is probe:
            candidate.waiting, candidate.said[probe.prefix] = None, reached

    def tick(self, now: float) -> list[Probe]:
        """Return the probes to ask for now: of each candidate, one prober after the other."""
        asked: list[Probe] = []
        for candidate in self._candidates.values():
            if not candidate.probing and self._is_due(candidate, now):
                candidate.probing, candidate.said = True, {}
            if candidate.probing and candidate.waiting is None:
                candidate.waiting = self._next_probe(candidate, now)
                asked += [candidate.waiting] if candidate.waiting else []
        return asked

    # --- what is known ------------------------------------------------------------------------

    def candidates(self) -> list[Candidate]:
        """Return the candidates, public ones first."""
        order = (Verdict.PUBLIC, Verdict.UNKNOWN, Verdict.PRIVATE)
        return sorted(self._candidates.values(), key=lambda one: order.index(one.verdict))

    def outer_hosts(self) -> list[str]:
        """Return the hosts at which members of other networks see us, most seen first."""
        votes: dict[str, set[str]] = {}
        for known in self._observations.values():
            votes.setdefault(known.seen[0], set()).add(prefix_of(known.ends.host))
        return sorted(votes, key=lambda host: -len(votes[host]))

    def outer(self, kind: str = "ip4") -> Outer | None:
        """Return a port from which we have dialled, and the place where the most observers see it:
        one of them may lie. None: not known."""
        seen = Counter(
            Outer(known.ends.own_port, *known.seen)
            for known in self._observations.values()
            if known.ends.dialled and kind_of(known.ends.host) == kind
        )
        return max(seen, key=seen.__getitem__, default=None)

    # --- probing ------------------------------------------------------------------------------

    def _probers(self, host: str) -> dict[str, PeerId]:
        """Return who can be asked about a host, one of each prefix."""
        found: dict[str, PeerId] = {}
        for peer, known in self._observations.items():
            prefix = prefix_of(known.ends.host)
            if known.seen[0] == host and prefix != prefix_of(host):
                found.setdefault(prefix, peer)
        return found

    def _prefixes(self, kind: str) -> set[str]:
        """Return the prefixes of all who see us by a kind of address.

        So many have to agree, not only of those who see us at one host: who invents a host for us
        is alone in seeing us there.
        """
        hosts = (known.ends.host for known in self._observations.values())
        return {prefix_of(host) for host in hosts if kind_of(host) == kind}

    def _is_due(self, candidate: Candidate, now: float) -> bool:
        """Whether to probe now; a new candidate waits a little until three can be asked."""
        there = len(self._probers(candidate.place[0]))
        patient = candidate.since + LOST_S > now
        return candidate.due <= now and there >= (PROBERS if patient else 1)

    def _next_probe(self, candidate: Candidate, now: float) -> Probe | None:
        """Return the next probe; None: the answers suffice, or no more can come."""
        heard = [said for said in candidate.said.values() if said is not None]
        silent = {prefix for prefix, said in candidate.said.items() if said is None}
        yes = sum(heard)
        no = len(heard) - yes
        there = self._prefixes(kind_of(candidate.place[0])) - silent
        enough = min(PROBERS, max(1, len(there))) if not yes or not no else PROBERS
        for verdict, votes in ((Verdict.PUBLIC, yes), (Verdict.PRIVATE, no)):
            if votes and votes >= enough:
                self._settle(candidate, verdict, votes, now)
                return None
        for prefix, peer in self._probers(candidate.place[0]).items():
            if prefix not in candidate.said and len(heard) < MOST_PROBERS:
                return Probe(peer, prefix, candidate.place)
        self._settle(candidate, Verdict.UNKNOWN, 0, now)
        return None

    def _settle(self, candidate: Candidate, verdict: Verdict, agreed: int, now: float) -> None:
        candidate.verdict, candidate.probers, candidate.probing = verdict, agreed, False
        candidate.due = now + (AGAIN_S if agreed >= PROBERS else ASIDE_S)

    # --- candidates ---------------------------------------------------------------------------

    def _renew(self, now: float) -> None:
        wanted = self._wanted()
        for place in self._candidates.keys() - wanted.keys():
            del self._candidates[place]
        for place, source in wanted.items():
            known = self._candidates.setdefault(place, Candidate(place, source, since=now, due=now))
            if known.source != source and source == "mapped":
                known.due = now  # the router lets others in now
            known.source = source

    def _wanted(self) -> dict[Place, Source]:
        hosts: dict[str, Source] = {
            host: "interface" for host in sorted(self._own) if is_global(host)
        }
        for kind in ("ip4", "ip6"):
            seen = [outer for outer in self.outer_hosts() if kind_of(outer) == kind]
            for outer in seen[:MAX_HOSTS]:
                hosts.setdefault(outer, "observed")
        found = dict(self._given)
        for host, source in hosts.items():
            if port := self._ports.get(kind_of(host)):
                found.setdefault((host, port), source)
        return dict(list(found.items())[:MAX_CANDIDATES])

    def _forget_one(self) -> None:
        """Drop the oldest observation of the prefix that has most."""
        prefixes = {peer: prefix_of(known.ends.host) for peer, known in self._observations.items()}
        ((crowd, _),) = Counter(prefixes.values()).most_common(1)
        del self._observations[next(peer for peer, prefix in prefixes.items() if prefix == crowd)]
