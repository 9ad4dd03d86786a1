"""Drives the machine of reachability: hears where peers see us, asks for probes, and has the
router map our port.

Every few seconds it looks at this machine's addresses, which change with the network. What is found
is told to the owner in words. State: the machines, and what was told.
"""

import secrets
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, Literal

import trio

from client.control.snapshot import ReachView
from client.net.addresses import reachable_hosts
from client.net.gateway import Mapped
from client.net.libp2p_network import Libp2pNetwork
from client.net.port_mapper import PortMapper
from client.train.ports import Ports
from protocol.address import Address, parse_address
from protocol.effects import Explain, Penalise
from protocol.hosts import is_global, is_loopback, kind_of, number_of
from protocol.ids import PeerId
from protocol.reachability.budgets import FLOOD_POINTS, Budgets
from protocol.reachability.machine import (
    Candidate,
    Place,
    Probe,
    Reachability,
    Source,
    Verdict,
)

LOOK_S: Final = 5.0
"""Between two looks at this machine's addresses."""
FIRST_OUTER_PORT, OUTER_PORTS, OTHER_PORTS = 20_000, 30_000, 4
"""Of the outer ports to wish for where the router has given ours to another machine."""


class Reach:
    """See the module's docstring; the nursery ends with the node."""

    def __init__(self, engine: Ports, network: Libp2pNetwork, nursery: trio.Nursery) -> None:
        self._engine, self._network, self._nursery = engine, network, nursery
        self.machine, self._budgets = Reachability(), Budgets()
        self.announced: Sequence[Address] = ()
        """Addresses that the owner announces."""
        self._mapped: dict[str, Mapped] = {}  # by kind of host
        self._told: dict[Place, Verdict] = {}
        others = [FIRST_OUTER_PORT + secrets.randbelow(OUTER_PORTS) for _ in range(OTHER_PORTS)]
        self._mappers = (
            PortMapper("upnp", self.wants_mapping, others, partial(self.map, "ip4")),
            PortMapper("pinhole", self.wants_pinhole, (), partial(self.map, "ip6")),
        )

    def sees(self, peer: PeerId) -> Place | None:
        """Return where we see a peer; None: through a relay, or where no other network does."""
        ends = self._network.ends(peer)
        return None if ends is None or not is_global(ends.host) else (ends.host, ends.port)

    def gone(self, peer: PeerId) -> None:
        self.machine.gone(peer, self._engine.now())
        self._tell_network()

    def observed(self, peer: PeerId, place: Place) -> None:
        """A peer says where it sees us."""
        ends = self._network.ends(peer)
        if not self._budgets.hears(peer, self._engine.now()):
            self._engine.perform(Penalise(peer, "reach-flood", FLOOD_POINTS))
            return
        if ends is None or number_of(place[0]) is None:
            return
        self.machine.observed(peer, ends, place, self._engine.now())
        self._tell_network()
        self._go_on()

    def _tell_network(self) -> None:
        outers = [self.machine.outer(kind) for kind in ("ip4", "ip6")]
        known = [outer for outer in outers if outer is not None]
        self._network.seen_at(self.machine.outer_hosts(), known)

    async def _probe(self, probe: Probe) -> None:
        reached = await self._network.probe(probe.peer, probe.place[1])
        self.machine.probed(probe, reached)
        self._go_on()

    def wants_mapping(self) -> int | None:
        """Return the port that a router should map; None: we have a public IPv4 address, or none
        at all."""
        four = [
            host for host in self._own_hosts() if kind_of(host) == "ip4" and not is_loopback(host)
        ]
        return self._ports().get("ip4") if four and not any(map(is_global, four)) else None

    def wants_pinhole(self) -> int | None:
        """Return the port for which a router should open its IPv6 firewall; None: we have no public
        IPv6 address."""
        six = any(kind_of(host) == "ip6" and is_global(host) for host in self._own_hosts())
        return self._ports().get("ip6") if six else None

    def _own_hosts(self) -> list[str]:
        return [host for a in self._network.listening for host in reachable_hosts(a.host)]

    def _ports(self) -> dict[str, int]:
        """Return the ports at which others can be meant to dial us, by kind of host."""
        return {a.kind: a.port for a in self._network.listening if not is_loopback(a.host)}

    def map(self, kind: Literal["ip4", "ip6"], mapped: Mapped | None) -> None:
        """Note what the router has mapped for us; None: nothing, or no longer."""
        self._mapped.pop(kind, None)
        if mapped is not None:
            self._mapped[kind] = mapped
            where = f"{mapped.host} port {mapped.port}"
            words = f"the router passes {where} on to this volunteer, as it was asked to"
            self._engine.perform(Explain("swarm", words))
        self._look()

    async def run(self) -> None:
        """Look at our addresses, and probe them, until cancelled."""
        while True:
            self._look()
            await trio.sleep(LOOK_S)

    async def keep_mapped(self) -> None:
        """Let the router pass a port on to us, and open its IPv6 firewall, until cancelled."""
        async with trio.open_nursery() as nursery:
            for mapper in self._mappers:
                nursery.start_soon(mapper.run)

    def renew(self) -> None:
        """Our way to the others has changed: look at once, and let everything be probed again."""
        for mapper in self._mappers:
            mapper.renew()
        self.machine.renew(self._engine.now())
        self._look()

    def _look(self) -> None:
        given: dict[Place, Source] = {}
        for held in self._mapped.values():
            given[held.host, held.port] = "mapped"
        for address in self.announced:
            given[address.host, address.port] = "announced"
        self.machine.listens(self._own_hosts(), self._ports(), given, self._engine.now())
        self._go_on()

    def _go_on(self) -> None:
        for probe in self.machine.tick(self._engine.now()):
            self._nursery.start_soon(self._probe, probe)
        news = [s for s in self.machine.candidates() if self._is_news(s)]
        for candidate in news:
            self._engine.perform(words_of(candidate))
        self._told = {s.place: s.verdict for s in self.machine.candidates()}

    def _is_news(self, candidate: Candidate) -> bool:
        known = self._told.get(candidate.place)
        return candidate.verdict not in (known, Verdict.UNKNOWN)

    def summary(self) -> ReachView:
        """Return how things stand, in words, with what the owner can do."""
        candidates = self.machine.candidates()
        ports: dict[str, int] = {a.kind: a.port for a in self._network.listening}
        public = next((s for s in candidates if s.verdict is Verdict.PUBLIC), None)
        if public is not None:
            way = " by the router, which maps the port" if public.source == "mapped" else ""
            words = f"reachable{way} at {_words(public)}"
            state, words = "mapped" if way else "reachable", f"{words}{_said_by(public)}"
            return ReachView(state=state, words=words)
        if not self._ports():
            return ReachView(state="local", words="listens on this machine only")
        if any(s.verdict is Verdict.PRIVATE for s in candidates):
            words = "not reachable: members of other networks could not dial this volunteer"
            next_step = self._advice(ports)
            return ReachView(state="unreachable", words=words, next_step=next_step)
        words = "not known: no member of another network could be asked yet"
        return ReachView(words=words)

    def _advice(self, ports: Mapping[str, int]) -> str:
        if self._shares_address():
            return (
                "the provider shares one IPv4 address among customers: no forward helps; ask it "
                "for an address of your own, or for IPv6"
            )
        here = self._own_hosts()
        own = [host for host in here if not is_global(host) and kind_of(host) == "ip4"]
        if not own:
            port = next(iter(ports.values()), 0)
            return f"open TCP port {port} in the firewall of this machine and of its router"
        port = ports.get("ip4", 0)
        return (
            f"forward TCP port {port} of the router to {own[0]}, and keep the port with "
            f"--listen-port {port}; or switch on UPnP on the router"
        )

    def _shares_address(self) -> bool:
        """Whether our router has no address of its own: carrier-grade NAT (RFC 6598)."""
        held = self._mapped.get("ip4")
        if held is None:
            return False
        seen = [host for host in self.machine.outer_hosts() if kind_of(host) == "ip4"]
        return not is_global(held.host) or (bool(seen) and held.host not in seen)

    @property
    def reachable(self) -> bool:
        """Whether members of other networks have reached one of our addresses."""
        return any(s.verdict is Verdict.PUBLIC for s in self.machine.candidates())

    def advertised(self, own: Iterable[str]) -> list[str]:
        """Return our addresses for others: those that members have reached, then ``own`` ones, of
        which those that nobody reached come last.

        An address that only peers or a router name is left out until it was reached.
        """
        candidates = {s.place: s.verdict for s in self.machine.candidates()}
        public = [
            str(Address(kind_of(host), host, port, self._network.peer_id))
            for (host, port), verdict in candidates.items()
            if verdict is Verdict.PUBLIC
        ]
        listed = list(own)
        private = [text for text in listed if candidates.get(_place(text)) is Verdict.PRIVATE]
        rest = [text for text in listed if text not in private]
        return list(dict.fromkeys((*public, *rest, *private)))


def _place(text: str) -> Place:
    with suppress(ValueError):
        address = parse_address(text)
        return address.host, address.port
    return "", 0


def _words(candidate: Candidate) -> str:
    host, port = candidate.place
    return f"{host} port {port}"


def _said_by(candidate: Candidate) -> str:
    who = "one member says" if candidate.probers == 1 else f"{candidate.probers} members say"
    return f", {who}"


def words_of(candidate: Candidate) -> Explain:
    """Return what the owner should know of a candidate that was probed."""
    where = _words(candidate)
    who = "a member" if candidate.probers == 1 else f"{candidate.probers} members"
    if candidate.verdict is Verdict.PUBLIC:
        return Explain("swarm", f"reachable: {who} reached this volunteer at {where}")
    words = f"{who} could not reach this volunteer at {where}"
    if candidate.source == "announced":
        return Explain("swarm", f"{words}, which it announces: is the port forwarded?", "warning")
    return Explain("swarm", words)
