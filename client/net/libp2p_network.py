"""The network: links over libp2p connections, kept up as long as they are wanted.

A link delivers in order within a lane while it is up. When it goes down, messages in flight are
lost, and a few may be lost when two simultaneous connections are merged.

State: the links by peer, the wanted peers with their addresses, scores of misbehaviour, and the
queue of events.
"""

import math
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from weakref import WeakValueDictionary

import trio

from client.net.addresses import Destination, numeric_host, parse_destination
from client.net.calling import MAX_ADDRESSES, Calls
from client.net.connection_limiter import HostLimits
from client.net.connectivity import Connectivity
from client.net.errors import AddressError, DialError, NetworkError, TurnedAway
from client.net.host import Connection, Host, open_host
from client.net.links import REPLACED, Carrier, Common, Link, outgoing
from client.net.network import Inbound, NetEvent, NetworkStatistics, PeerDown, PeerUp
from client.net.pacing import Pacer, Rates
from client.net.penalties import PenaltyBox
from client.net.punching import Punching
from client.net.queues import ByteQueue
from client.net.racing import in_order
from client.net.relay.exchange import answer_to, receive_message, send_last
from client.net.relay.passing import PassingOn
from client.net.relay.reaching import Reaching
from client.net.strangers import Strangers
from client.net.tcp import TCP
from client.net.transport import ByteStream
from client.net.unfinished import UnfinishedFrames
from client.net.yamux import YamuxStream
from protocol.address import Address
from protocol.errors import RemoteProtocolError
from protocol.hosts import Outer, is_global, kind_of
from protocol.ids import PeerId
from protocol.reachability.budgets import FLOOD_POINTS, Budgets
from protocol.reachability.machine import Ends
from protocol.relay.messages import (
    PROBE_FILLER_BYTES,
    Connect,
    DialBack,
    Moving,
    Punch,
    Reserve,
    Status,
    Stop,
    WhereIs,
)
from protocol.relay.server import RelayLimits
from protocol.wire.messages import Goodbye, Hello, Message
from protocol.wire.route import Lane

EVENT_ITEMS = 1024
EVENT_BYTES = 64 * 1024 * 1024
"""Events queued for the rest of the client; beyond it, reading from peers pauses."""
UP_S = 10.0
"""Longest time from dialling a peer until its link is up."""
FLUSH_S = 2.0
"""Longest time to leave a peer before the connection is cut."""
MOST_WAITING_BYTES: Mapping[Lane, int] = {
    "control": 32 * 1024**2,
    "bulk": 1024 * 1024**2,
    "background": 256 * 1024**2,
}
"""What may wait to be sent to all peers. Of tensors: sixteen segments of the largest size, and more
where a run's stages are larger."""
LEAST_SHARE = 16
"""Nobody loses its link for less than this part of what may wait for all."""
ROUNDS = 6
"""Gradients of a stage that may wait at least: what two peers sum, the sums, and those of the step
before. All of a round are queued at once."""
BACKOFF_FIRST_S = 0.25
BACKOFF_MOST_S = 30.0
GREETINGS = (Hello, Goodbye)
"""Messages accepted before a Hello; all others wait in the peer's own window."""
MAX_GREETINGS = 16
MAX_TOO_EARLY = 1024
"""Messages before any of these: a member sends them for as long as it does not know that its link
is another one."""
ADMITTED_STREAMS = 16 + RelayLimits.circuits_of_member
"""Streams that an admitted peer may have open: circuits come as streams."""
STEADY_S = 5.0
"""A link that ended sooner counts as a failure to connect."""
MAX_RELAYED = 2
"""Addresses of one member that are tried through relays."""
DIRECT_S = 2.0
"""Longest dial of a peer that is reached through a relay at the same time."""
HEARD_S = 0.05
"""Between two looks whether a peer that is dialled beside its link is heard on that again."""
ADVERT_S = 2.0
"""Longest wait until a peer that asks to be dialled back is a member: its advert travels on another
stream."""
RELAY_ASK_S = 10.0
"""Longest wait for what a stream that is no lane is about."""


class Libp2pNetwork:
    """Made by `open_network`. All methods are to be called from one trio thread."""

    def __init__(self, host: Host, rates: Rates, hello_s: float | None) -> None:
        self._host, self._hello_s = host, hello_s
        host.is_member = self.is_member
        self._members = frozenset[PeerId]()
        self._strangers = Strangers(self.is_member)
        self._common = Common(
            deliver=self._deliver,
            refused=self._on_refused,
            changed=self._settle,
            request=self._on_request,
            upload=Pacer(rates.upload_bytes_per_s),
            download=Pacer(rates.download_bytes_per_s),
            unfinished=UnfinishedFrames(),
            hello_s=math.inf if hello_s is None else hello_s,
        )
        self._most_waiting = MOST_WAITING_BYTES
        self.passing = PassingOn(self, host.nursery, self._common.upload)
        self.reaching = Reaching(self, host.nursery)
        host.dial_circuit = self.reaching.dial
        self.reached = False
        """Whether a member has dialled us from the internet, in the network where we are now."""
        self.watch = Connectivity(self)
        self.punching = Punching(self)
        self._links: dict[PeerId, Link] = {}
        self._wanted: dict[PeerId, tuple[str, ...]] = {}
        self._named = frozenset[str]()
        self._keepers: dict[PeerId, trio.CancelScope] = {}
        """Of the tasks that keep a link with each wanted peer."""
        self._dials: WeakValueDictionary[PeerId, trio.Lock] = WeakValueDictionary()
        self._calls = Calls(host.chosen_hosts, trio.current_time())
        self._outer_hosts: tuple[str, ...] = ()
        self._penalties = PenaltyBox()
        self._budgets = Budgets()
        self._refused: Counter[str] = Counter()
        self._ended = Counter[str]()  # sums over carriers that have ended
        self._changed = WeakValueDictionary[PeerId, trio.lowlevel.ParkingLot]()
        """Who waits for a change of the link with a peer, or of its addresses: those of others need
        not wake up."""
        self.events = ByteQueue[NetEvent](_event_size, EVENT_ITEMS, EVENT_BYTES)
        """Network events, in order for each peer and lane; while it is full, reading from peers
        pauses. Links come and go beyond its bounds, as seldom as the limiter lets them."""
        host.nursery.start_soon(self.watch.run)

    @property
    def peer_id(self) -> PeerId:
        return self._host.peer_id

    @property
    def addresses(self) -> tuple[str, ...]:
        """Full multiaddrs under which we listen."""
        first, *others = self._host.addresses
        return (first, *self.reaching.addresses, *others)

    @property
    def is_outside(self) -> bool:
        """Whether we have a link with a machine elsewhere on the internet."""
        carriers = (carrier for link in self._links.values() for carrier in link.carriers)
        return any(c.connection.ip and is_global(c.connection.ip) for c in carriers)

    def working(self) -> dict[PeerId, Connection]:
        """Return what takes the frames of each link that works."""
        connections = {peer: link.connection for peer, link in self._links.items() if link.works}
        return {peer: found for peer, found in connections.items() if found is not None}

    def doubt(self, peer: PeerId) -> None:
        """Dial a peer beside its link, which does not answer."""
        if (connection := self._connection(peer)) is not None:
            connection.doubt()
            self._has_changed(peer)

    def dial_again(self) -> None:
        """Dial all wanted peers without a sure link, at once, in place of dials under way."""
        for peer in list(self._keepers):
            self._stop_wanting(peer)
            self._start_keeper(peer)

    def network_changed(self) -> None:
        """Forget what held in the network that this machine was in, and reserve at relays anew."""
        self.reached = False
        TCP.network_changed()
        self.reaching.renew()

    def post(self, peer: PeerId, message: Message, payload: bytes = b"") -> bool:
        """Queue a message without blocking; return whether there is a link to take it. Where too
        much waits for all, the peer for which most waits loses its link. Raises LocalProtocolError:
        no peer would accept it."""
        frame, lane = outgoing(message, payload), message.route.lane
        link = self._links.get(peer)
        if link is None or not link.works:
            return False
        link.queues[lane].append(frame)
        most = self._most_waiting[lane]
        if link.queues[lane].size_bytes > most / LEAST_SHARE:
            waiting = {peer: one.queues[lane].size_bytes for peer, one in self._links.items()}
            if sum(waiting.values()) > most:
                slow = self._links[max(waiting, key=lambda whose: waiting[whose])]
                self._stop_wanting(slow.peer)
                slow.close("it reads more slowly than it requests data")
        return True

    def unsent_bytes(self, peer: PeerId, lane: Lane) -> int:
        """Return the bytes of a lane not yet taken by the connection; 0 without a link."""
        link = self._links.get(peer)
        return 0 if link is None else link.unsent_bytes(lane)

    async def wait_sent(self, peer: PeerId, lane: Lane) -> None:
        """Wait until a lane is empty, or the link has ended."""
        link = self._links.get(peer)
        while link is not None and not link.gone.is_set() and link.unsent_bytes(lane):
            await link.sent.park()

    async def connect(self, *addresses: str) -> PeerId:
        """Dial a peer at any of its multiaddrs, one at least, and wait until its link is up. Raises
        AddressError, DialError: names the attempts and their results."""
        return await self._connect(self._in_order(map(parse_destination, addresses)), None)

    async def _connect(
        self,
        targets: Sequence[Destination],
        may_call: Callable[[Destination], bool] | None,
    ) -> PeerId:
        peer = targets[0].peer
        if self._penalties.is_banned(peer, trio.current_time()):
            raise DialError(f"{targets[0]}: this peer is banned for a while")
        # One dial at a time: two of our connections would replace each other.
        async with self.dialling(peer):
            link = self._links.get(peer)
            if link is not None and link.in_doubt:
                with trio.CancelScope() as beside:
                    self._host.nursery.start_soon(self._cancel_once_heard, link, beside)
                    await self._dial(targets, may_call)
            elif not self._is_up(peer):
                await self._dial(targets, may_call)
        return peer

    async def _cancel_once_heard(self, link: Link, dial: trio.CancelScope) -> None:
        """End a dial beside a link when the peer answers on that; if the dial is over, nothing."""
        while link.in_doubt:
            await trio.sleep(HEARD_S)
        if self._links.get(link.peer) is link:
            dial.cancel()

    async def _dial(
        self,
        targets: Sequence[Destination],
        may_call: Callable[[Destination], bool] | None,
    ) -> None:
        connection = await self._host.connect(targets, may_call)
        peer = connection.peer
        assert connection.called is not None
        if connection.relay is None:
            self._calls.believe(connection.called)
        with trio.move_on_after(UP_S):
            while not self._is_up(peer) and not connection.ended.is_set():
                await self.change_of(peer).park()
        if not self._is_up(peer):
            kind = TurnedAway if connection.ended.is_set() else DialError
            connection.close("its lanes did not open in time")
            raise kind(f"{connection.called}: connected, but {connection.reason}")

    def _in_order(self, targets: Iterable[Destination]) -> list[Destination]:
        """Return the addresses to try, in order: those through relays last, and of these first the
        ones through relays that we are linked with: one that has died costs time."""
        targets = list(targets)
        own = [parse_destination(address).host for address in self._host.addresses]
        direct = (target for target in targets if target.relay is None)
        straight = in_order(direct, [*own, *self._outer_hosts])
        relayed = sorted((target for target in targets if target.relay), key=self._detour)
        return straight[:MAX_ADDRESSES] + relayed[:MAX_RELAYED]

    def want(self, peers: Mapping[PeerId, Sequence[str]]) -> None:
        """Replace the set of peers to stay connected with, and their addresses."""
        before, self._wanted = (
            self._wanted,
            {peer: tuple(addresses) for peer, addresses in peers.items() if peer != self.peer_id},
        )
        for peer in list(self._changed):  # who is wanted is said often, and seldom changes
            if self._wanted.get(peer) != before.get(peer):
                self._has_changed(peer)
        for peer in set(self._keepers) - set(self._wanted):
            self._stop_wanting(peer)
        for peer in set(self._wanted) - set(self._keepers):
            # The larger id gives the smaller one a head start: fewer connections cross.
            larger = self.peer_id > peer
            self._start_keeper(peer, random.uniform(0.1, 0.5) if larger else 0.0)

    def _start_keeper(self, peer: PeerId, after_s: float = 0.0) -> None:
        self._keepers[peer] = trio.CancelScope()
        self._host.nursery.start_soon(self._keep, peer, self._keepers[peer], after_s)

    def named(self, addresses: Iterable[str]) -> None:
        """Replace the addresses that the user or an earlier session names: while their peers are
        wanted, they are dialled for ever, also in private ranges where nobody was met yet."""
        self._named = frozenset(addresses)

    def expect_payloads(self, largest_bytes: int, usual_bytes: int, round_bytes: int) -> None:
        """Set the largest and the usual payload sizes of this run in bytes, and the size of a
        stage's gradient as it is averaged: all of a round are queued at once."""
        self._common.unfinished.expect(largest_bytes, usual_bytes)
        usual = MOST_WAITING_BYTES["bulk"]
        self._most_waiting = {**MOST_WAITING_BYTES, "bulk": max(usual, ROUNDS * round_bytes)}

    async def in_reach(self, addresses: Sequence[str]) -> list[str]:
        """Return the addresses of a member's advert that we would dial."""
        return list(await self._resolved(addresses))[:MAX_ADDRESSES]

    @property
    def listening(self) -> Sequence[Address]:
        """Where we listen; hosts may stand for all addresses of this machine."""
        return self._host.bound

    def ends(self, peer: PeerId) -> Ends | None:
        """Return the ends of the link to a peer; None: there is none, or it goes through another
        peer."""
        connection = self._connection(peer)
        if connection is None or not connection.ip or not connection.ports[1]:
            return None
        if connection.punched:
            return None  # our router lets this peer in, and so it can say nothing of others
        own, other = connection.ports
        return Ends(connection.ip, own, connection.dialled, other)

    def seen_at(self, hosts: Sequence[str], outers: Sequence[Outer]) -> None:
        """Note the hosts at which members of other networks see us, numbers: a peer with one of
        them is in our own home; and a port of ours for each kind of host that everybody sees at
        one place."""
        self._outer_hosts = tuple(hosts)
        before, self.punching.own = self.punching.own, tuple(outers)
        for peer in list(self._changed) if outers and not before else ():
            self._has_changed(peer)

    def is_admitted(self, peer: PeerId) -> bool:
        link = self._links.get(peer)
        return link is not None and link.admitted.is_set()

    def dialling(self, peer: PeerId) -> trio.Lock:
        """Return what is held while a peer is dialled."""
        return self._dials.setdefault(peer, trio.Lock())

    async def meet(self, target: Destination, own_port: int, *, first: bool) -> None:
        """Dial a peer that dials us, and let the link move; raises DialError."""
        self._expect_move(target.peer)
        await self._host.meet(target, own_port, first=first)

    def _expect_move(self, peer: PeerId) -> None:
        if link := self._links.get(peer):
            link.moving()

    async def probe(self, peer: PeerId, port: int) -> bool | None:
        """Ask a peer to dial us at the address at which it sees us, from a fresh port; return
        whether we have proved our identity there, None: it would not dial, or does not answer."""
        connection = self.direct(peer)
        if connection is None:
            return None
        answer = await answer_to(self, connection, DialBack(port, bytes(PROBE_FILLER_BYTES)))
        known = {"ok": True, "unreachable": False}
        return known.get(answer.code) if isinstance(answer, Status) else None

    async def _dial_back(self, peer: PeerId, port: int) -> Status:
        """Dial a member at the address at which we see it, within our budget; return the answer."""
        ends, now = self.ends(peer), trio.current_time()
        if not self._budgets.hears(peer, now):
            self.penalise(peer, FLOOD_POINTS, "reach-flood")
            return Status("too-often")
        with trio.move_on_after(ADVERT_S):
            while not self.is_member(peer):
                await trio.sleep(HEARD_S)
        if ends is None or not self.is_member(peer):
            return Status("not-a-member")
        if not self._budgets.dials_back(ends.host, now):
            return Status("too-often")
        there = Destination(kind_of(ends.host), ends.host, port, peer)
        return Status("ok" if await self._host.probe(there) else "unreachable")

    async def disconnect(self, peer: PeerId, reason: str) -> None:
        """Flush what is queued, end the link, and stop wanting the peer."""
        self._stop_wanting(peer)
        if link := self._links.get(peer):
            with trio.move_on_after(FLUSH_S):
                await link.finish(reason)
            link.close(reason)

    def _stop_wanting(self, peer: PeerId) -> None:
        if peer in self._keepers:
            self._keepers.pop(peer).cancel()

    def admit(self, peer: PeerId) -> None:
        """Accept a peer's messages from now on, as long as its link lasts: its Hello was
        accepted."""
        if link := self._links.get(peer):
            link.admitted.set()
            for carrier in link.carriers:
                self._admitted(carrier.connection)
            self._has_changed(peer)

    def members(self, peers: Collection[PeerId]) -> None:
        """Replace the set of known members; all others share the small budget of strangers."""
        before, self._members = self._members, frozenset(peers)
        for peer in self._members - before:
            self.passing.machine.admitted(peer)

    def trust(self, proven: Collection[PeerId] | None, guests: int) -> None:
        """Replace the set of peers that work has proven. All others, members or not, share so many
        places among the links that come to us; None: all are alike."""
        links = [link for peer in proven or () if (link := self._links.get(peer)) is not None]
        ips = [c.connection.ip for link in links for c in link.carriers if c.connection.ip]
        self._host.limiter.trust(proven, guests, ips, trio.current_time())

    def limit(self, rates: Rates) -> None:
        self._common.upload.limit(rates.upload_bytes_per_s)
        self._common.download.limit(rates.download_bytes_per_s)

    def is_member(self, peer: PeerId) -> bool:
        """Whether a peer is a member, as far as we know."""
        return self._hello_s is None or peer in self._members

    def direct(self, peer: PeerId) -> Connection | None:
        """Return the connection of a link that works without a relay."""
        connection = self._connection(peer)
        return None if connection is None or connection.relay is not None else connection

    def _connection(self, peer: PeerId) -> Connection | None:
        link = self._links.get(peer)
        return link.connection if link is not None and link.works else None

    def relays(self) -> dict[PeerId, PeerId]:
        """Return the relay of each link that goes through one, by peer."""
        relays = {peer: one.relay for peer, one in self.working().items()}
        return {peer: relay for peer, relay in relays.items() if relay is not None}

    def serve_circuit(self, stream: ByteStream, relay: PeerId, asker: PeerId) -> None:
        """Take an inbound connection that a relay passes on; it outlives the relay's stream."""
        self._host.nursery.start_soon(self._host.serve_circuit, stream, relay, asker)

    def _admitted(self, connection: Connection) -> None:
        """The peer at the other end is no longer unknown: it may want circuits."""
        if connection.inbound is not None:
            connection.inbound.admitted = True
        connection.session.inbound_streams = ADMITTED_STREAMS
        inbound = not connection.dialled and connection.relay is None and not connection.punched
        self.reached = self.reached or (inbound and is_global(connection.ip))

    def penalise(self, peer: PeerId, points: int, reason: str) -> None:
        """Count a broken rule; at 100 points the link is cut and the peer banned for a while."""
        self._refused[reason] += 1
        banned = self._penalties.add(peer, points, trio.current_time())
        if banned and (link := self._links.get(peer)):
            link.close(f"banned: {reason}")

    def expel(self, peer: PeerId, reason: str) -> None:
        """Cut a peer's link and refuse its connections, however long we run, as long as there are
        not too many such peers: its Hello has to be refused as well."""
        self._penalties.expel(peer)
        if link := self._links.get(peer):
            link.close(f"expelled: {reason}")

    def statistics(self) -> NetworkStatistics:
        carriers = (carrier for link in self._links.values() for carrier in link.carriers)
        moved = sum(map(_moved, carriers), self._ended)
        failures = self.punching.refused.items()
        unmet = Counter({f"punching: {reason}": number for reason, number in failures})
        return NetworkStatistics(
            **moved,
            refused=dict(self._refused + self._host.refused + unmet),
            peers=tuple(link.peer for link in self._links.values() if link.works),
        )

    def change_of(self, peer: PeerId) -> trio.lowlevel.ParkingLot:
        """Return where to wait for a change of a peer's link or addresses, or of our places."""
        return self._changed.setdefault(peer, trio.lowlevel.ParkingLot())

    def _has_changed(self, peer: PeerId) -> None:
        if (waiting := self._changed.get(peer)) is not None:
            waiting.unpark_all()

    def _is_up(self, peer: PeerId) -> bool:
        link = self._links.get(peer)
        return link is not None and link.works

    def _is_sure(self, peer: PeerId) -> bool:
        return self._is_up(peer) and not self._links[peer].in_doubt

    async def _serve(self, connection: Connection) -> None:
        """Carry a link by this connection until it ends: the handler of the host."""
        peer = connection.peer
        try:
            if peer == self.peer_id or self._penalties.is_banned(peer, trio.current_time()):
                self._refused["banned" if peer != self.peer_id else "own-identity"] += 1
                connection.close("refused")
                return
            if connection.relay is None:
                self._calls.met(peer, connection.ip)
            await self._carry(self._link_for(connection), connection)
        finally:
            connection.ended.set()
            self._has_changed(peer)

    def _link_for(self, connection: Connection) -> Link:
        """Return the link that a new connection belongs to."""
        peer = connection.peer
        link = self._links.get(peer)
        if link is not None and link.is_over_for(connection):
            link.close(REPLACED)
            self._end(link, link.carriers[-1].connection)
            link = None
        if link is None:
            link = self._links[peer] = Link(self.peer_id, peer, self._common)
        return link

    async def _carry(self, link: Link, connection: Connection) -> None:
        """Run one carrier of a link, and report the link's end if it was the last."""
        if self._hello_s is None:
            link.admitted.set()
        if link.admitted.is_set():
            self._admitted(connection)
        carrier = Carrier(connection, link)
        connection.session.intake = self._strangers.intake(link.peer)
        link.attach(carrier)
        self._settle(link)
        if connection.relay is not None:
            self._host.nursery.start_soon(self.punching.replace, connection)
        try:
            await connection.run(carrier.run)
        except Exception:
            connection.close("an error on our side")
            raise
        finally:
            last = link.detach(carrier)
            self._settle(link)
            self._ended += _moved(carrier)
            if (broken := connection.session.violation) is not None:
                self._on_refused(link.peer, broken)
            if last:
                self._end(link, connection)

    async def _on_request(self, connection: Connection, stream: YamuxStream) -> None:
        """Serve a stream that a peer has opened about circuits or its link: only it may end."""
        try:
            with trio.fail_after(RELAY_ASK_S):
                message = await receive_message(stream)
            match message:
                case Reserve() | Connect() | WhereIs():
                    await self.passing.serve(connection, stream, message)
                case Stop():
                    await self.reaching.serve(connection, stream, message)
                case Punch():
                    await self.punching.serve(connection, stream, message)
                case Moving():
                    self._expect_move(connection.peer)
                    await send_last(stream, Status("ok"))
                case DialBack(port):
                    await send_last(stream, await self._dial_back(connection.peer, port))
                case _:
                    raise RemoteProtocolError("relay-message-unasked", penalty=20)
        except (NetworkError, trio.TooSlowError):
            stream.reset()

    def _settle(self, link: Link) -> None:
        if link.settle():
            self._has_changed(link.peer)
            self.events.append(PeerUp(link.peer))

    def _end(self, link: Link, connection: Connection) -> None:
        """Tell of a link's end, which this connection explains, if of its beginning."""
        if self._links.get(link.peer) is not link:
            return  # it was told already
        del self._links[link.peer]
        if link.up.is_set():
            self.events.append(PeerDown(link.peer, connection.reason, connection.by_peer))

    async def _deliver(self, link: Link, message: Message, payload: bytes) -> None:
        await link.up.wait()
        if not link.admitted.is_set() and not await self._before_admission(link, message):
            return
        await self._strangers.turn(link.peer)
        inbound = Inbound(link.peer, message, payload)
        await self.events.put(inbound, lambda: self._links.get(link.peer) is link)

    async def _before_admission(self, link: Link, message: Message) -> bool:
        """Let a few greetings pass; other messages wait until the peer is admitted. Return whether
        to take it: what comes before a greeting was meant for an earlier link, whose end the peer
        had not heard of yet."""
        if isinstance(message, GREETINGS):
            link.greetings += 1
            if link.greetings > MAX_GREETINGS:
                raise RemoteProtocolError("greeting-flood", penalty=50)
        elif link.greetings:
            await link.admitted.wait()
        else:
            link.too_early += 1
            if link.too_early > MAX_TOO_EARLY:
                raise RemoteProtocolError("greeting-flood", penalty=50)
            return False
        return True

    def _on_refused(self, peer: PeerId, error: RemoteProtocolError) -> None:
        self.penalise(peer, error.penalty, error.reason)

    async def _keep(self, peer: PeerId, scope: trio.CancelScope, after_s: float) -> None:
        """Dial a wanted peer whenever there is no link, with growing pauses while none lasts."""
        with scope:
            await trio.sleep(after_s)
            backoff_s = BACKOFF_FIRST_S
            while True:
                if not self._is_sure(peer):
                    await self.dial_any(self._wanted.get(peer, ()))
                began = trio.current_time()
                while self._is_sure(peer):
                    await self.change_of(peer).park()
                if trio.current_time() - began >= STEADY_S:
                    backoff_s = BACKOFF_FIRST_S
                else:
                    await trio.sleep(backoff_s * random.uniform(0.5, 1.5))
                    backoff_s = min(2 * backoff_s, BACKOFF_MOST_S)

    async def dial_beside(self, peer: PeerId) -> None:
        """Dial a wanted peer beside a relayed connection, from which the new one takes over."""
        found = (await self._resolved(self._wanted.get(peer, ()))).values()
        now = trio.current_time()
        addresses = [one for one in found if one.relay is None and self._calls.may_call(one, now)]
        link = self._links.get(peer)
        connection = None if link is None else link.connection
        if not addresses or connection is None:
            return
        if await answer_to(self, connection, Moving()) is None:
            return
        self._expect_move(peer)
        async with self.dialling(peer):
            if self.direct(peer) is None:
                with suppress(NetworkError, trio.TooSlowError), trio.fail_after(DIRECT_S):
                    await self._dial(self._in_order(addresses), None)

    async def dial_any(self, addresses: Sequence[str]) -> None:
        """Dial a peer at those of its addresses that may be called now."""
        targets = self._in_order((await self._resolved(addresses)).values())
        if not targets:
            return
        with suppress(NetworkError):  # whoever wants the peer dials again
            await self._connect(targets, self._may_call)

    def _detour(self, address: Destination) -> int:
        return 0 if address.relay is not None and self.direct(address.relay) is not None else 1

    def _may_call(self, address: Destination) -> bool:
        """Whether to dial an address now; asking a relay that we are linked with is no dial."""
        if address.relay is not None and self.direct(address.relay) is not None:
            return True
        return self._calls.may_call(address.first_hop, trio.current_time())

    async def _resolved(self, addresses: Sequence[str]) -> dict[str, Destination]:
        """Return the addresses that are in reach, each with the number of its host."""
        found = {}
        for text in addresses:
            with suppress(AddressError):
                named = text in self._named
                address = await numeric_host(parse_destination(text), named=named)
                if named:
                    self._calls.expect(address.first_hop)
                if self._calls.is_in_reach(address.first_hop):
                    found[text] = address
        return found


@asynccontextmanager
async def open_network(
    seed: bytes,
    listen: tuple[str, int],
    limits: HostLimits = HostLimits(),  # noqa: B008  (frozen)
    rates: Rates = Rates(),  # noqa: B008
) -> AsyncIterator[Libp2pNetwork]:
    """Open the network of one identity; every link ends with the block. ``seed`` and ``listen`` are
    those of `open_host`, and so is what it raises."""

    async def serve(connection: Connection) -> None:
        await network._serve(connection)

    async with open_host(seed, listen, serve, limits) as host:
        network = Libp2pNetwork(host, rates, limits.hello_s)
        yield network


def _moved(carrier: Carrier) -> Counter[str]:
    """Return what a carrier has counted, as ``NetworkStatistics`` names it. Bytes of a relayed one
    are counted in the link with the relay."""
    line = carrier.connection
    moved = Counter(tensor_bytes_out=carrier.tensor_bytes_out)
    if line.relay is None:
        moved.update(bytes_in=line.bytes_in, bytes_out=line.bytes_out)
    return moved


def _event_size(event: NetEvent) -> int:
    """Bytes that an event holds, roughly: headers are small beside payloads."""
    return len(event.payload) + 512 if isinstance(event, Inbound) else 128
