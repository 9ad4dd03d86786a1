"""Members that do nothing but find out how they are reached, on hosts of a laboratory of homes.

Each has a real network in a thread of its host's namespace, and the driver of reachability over it;
of the node there is only what hands it its messages.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Final

import trio

from client.control.snapshot import ReachView
from client.net.libp2p_network import Libp2pNetwork, open_network
from client.net.network import Inbound, PeerDown, PeerUp
from client.train.messaging.handshake import CLIENT, PROTOCOL
from client.train.swarm.reach import Reach
from protocol.effects import Explain, Penalise
from protocol.ids import PeerId
from protocol.wire.messages import Hello, Message
from tests.netlab.inside import inside
from tests.netlab.internet import Internet

PORT: Final = 4001
DEADLINE_S: Final = 60.0


class ReachingMember:
    """One member; ``reach`` may be looked at from any thread."""

    def __init__(self, dial: Sequence[str], *, port_mapping: bool) -> None:
        self._dial, self._port_mapping = dial, port_mapping
        self.addresses: tuple[str, ...] = ()
        self.words: list[str] = []
        self.answers: list[bool | None] = []
        """Of probers, in order."""
        self.received: list[Message] = []
        """What peers have sent that is not about reachability, in order."""
        self.token: trio.lowlevel.TrioToken
        self.reach: Reach
        self.network: Libp2pNetwork
        self.ready, self._stop = threading.Event(), threading.Event()

    # --- what the driver wants of an engine -----------------------------------------------------

    def now(self) -> float:
        """Monotonic seconds."""
        return trio.current_time()

    def send(self, peer: PeerId, message: Message, payload: bytes = b"") -> None:
        self.network.post(peer, message, payload)

    def perform(self, effect: Explain | Penalise) -> None:
        """Note what the owner would be told, or do as the engine does."""
        if isinstance(effect, Penalise):
            self.network.penalise(effect.peer, effect.points, effect.reason)
        else:
            self.words.append(effect.words)

    async def probe(self, peer: PeerId, port: int) -> bool | None:
        """Ask a prober, and note what it answers."""
        self.answers.append(answer := await self._probe(peer, port))
        return answer

    # --- running --------------------------------------------------------------------------------

    async def run(self) -> None:
        """Take part until stopped."""
        async with (
            open_network(os.urandom(32), ("all", PORT)) as network,
            trio.open_nursery() as nursery,
        ):
            self.network = network
            self._probe, network.probe = network.probe, self.probe  # type: ignore[method-assign]
            self.token = trio.lowlevel.current_trio_token()
            self.reach = Reach(self, network, nursery)
            nursery.start_soon(self.reach.run)
            nursery.start_soon(self._take)
            if self._port_mapping:
                nursery.start_soon(self.reach.keep_mapped)
            self.addresses = network.addresses
            for address in self._dial:
                await network.connect(address)
            self.ready.set()
            while not self._stop.is_set():
                await trio.sleep(0.05)
            nursery.cancel_scope.cancel()

    async def _take(self) -> None:
        async for event in self.network.events:
            match event:
                case PeerUp(peer):
                    seen = self.reach.sees(peer)
                    self.network.post(peer, Hello(PROTOCOL, None, CLIENT, seen=seen))
                case PeerDown(peer):
                    self.reach.gone(peer)
                case Inbound(peer, Hello(seen=seen)):
                    self.network.admit(peer)
                    if seen is not None:
                        self.reach.observed(peer, seen)
                case Inbound(_, message):
                    self.received.append(message)

    def stop(self) -> None:
        self._stop.set()

    def wait(self, until: Callable[[ReachView], bool]) -> ReachView:
        """Wait until its own view fulfils a condition; return it."""
        end = time.monotonic() + DEADLINE_S
        while time.monotonic() < end:
            if until(now := self.reach.summary()):
                return now
            time.sleep(0.05)
        raise AssertionError(f"still {self.reach.summary()}, {self.reach.machine.candidates()}")


class ReachingSwarm:
    """Members by the names of their hosts."""

    def __init__(self, net: Internet, stack: ExitStack) -> None:
        self._net, self._stack = net, stack
        self.members: dict[str, ReachingMember] = {}

    def start(self, host: str, *dial: str, port_mapping: bool = False) -> ReachingMember:
        """Start the member of a host, linked with those at these addresses.

        Of the ways to map a port, UPnP looks from this process's own network: it finds nobody.
        """
        member = self.members[host] = ReachingMember(dial, port_mapping=port_mapping)
        thread = threading.Thread(
            target=lambda: inside(self._net, host, lambda: trio.run(member.run))
        )
        thread.start()
        self._stack.callback(thread.join)
        self._stack.callback(member.stop)
        assert member.ready.wait(DEADLINE_S)
        return member

    def can_dial(self, host: str, address: str, peer: PeerId) -> bool:
        """Whether a host without a link reaches a peer at an address."""

        async def dial() -> bool:
            async with open_network(os.urandom(32), ("127.0.0.1", 0)) as network:
                with trio.move_on_after(4):
                    return await network.connect(f"{address}/p2p/{peer}") == peer
            return False

        try:
            return inside(self._net, host, lambda: trio.run(dial))
        except Exception:
            return False


@contextmanager
def reaching_swarm(net: Internet) -> Iterator[ReachingSwarm]:
    """Members that end with the block."""
    with ExitStack() as stack:
        yield ReachingSwarm(net, stack)
