"""A stranger: an identity and links of its own, no worker, and messages written by hand.

    python -m tests.hostile.stranger NAME --swarm FILE --peer ADDRESS ... --seconds 60 --host HOST

Runs one attack against a swarm, for ``scene.py``. It prints ``begun`` when it has its
links and the attack begins.
"""

from __future__ import annotations

import argparse
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import trio

from client.net.errors import NetworkError
from client.net.libp2p_network import Libp2pNetwork, open_network
from client.net.network import Inbound, PeerDown, PeerUp
from client.train.messaging.handshake import PROTOCOL
from protocol.ids import PeerId, SwarmId
from protocol.invite import SwarmFile, parse_swarm_file
from protocol.manifest import Manifest
from protocol.membership.advert import ADVERT, ADVERTS, Advert
from protocol.membership.records import Record, seal
from protocol.wire.envelope import Envelope, Signer
from protocol.wire.messages import Heartbeat, Hello, Message, Records
from protocol.wire.parts import SeatStatus
from tests.hostile.attack import Attack, attack_named
from tests.support import arrivals

HOST = "127.0.0.1"
UNREACHABLE = "/ip4/127.0.0.1/tcp/9/p2p/"
HEARD = 4096
"""Messages kept for the attack to read; the oldest give way."""
PULSE_S = 1.0


def advert(peer: PeerId, addresses: Sequence[str] = (), **changes: object) -> Advert:
    """Return a plausible advert of an identity; without addresses nobody reaches it."""
    usual = Advert(
        addresses=tuple(addresses) or (UNREACHABLE + peer,),
        flops=1e11,
        memory_bytes=2**34,
        upload_bytes_per_s=1e7,
        download_bytes_per_s=1e7,
        seats=1,
        joined=int(time.time()) - 3600,
    )
    return msgspec.structs.replace(usual, **changes)


def record_of(signer: Signer, swarm: SwarmId, kind: str, body: bytes, number: int = 0) -> Envelope:
    """Return an identity's signed record of itself; with 0 its number grows with the time."""
    now = time.time()
    record = Record(number or int(now * 1000), int(now) + 600, body)
    return seal(signer, kind, record, swarm)


@dataclass
class Stranger:
    """An attacker's identity with its network. Made by ``open_stranger``."""

    signer: Signer
    network: Libp2pNetwork
    file: SwarmFile
    addresses: tuple[str, ...]
    """Addresses of the honest ones."""
    nursery: trio.Nursery
    host: str
    """Our own address."""
    peers: list[PeerId] = field(default_factory=list)
    """Honest peers with which a link is up and greeted."""
    heard: trio.MemoryReceiveChannel[Inbound] = field(init=False)
    """Their newest ``HEARD`` messages."""
    seats: list[SeatStatus] = field(default_factory=list)
    """The seats in the heartbeats of ``pulse``."""
    _sink: trio.MemorySendChannel[Inbound] = field(init=False)
    _newest: dict[PeerId, int] = field(default_factory=dict)
    _seq: int = 0
    _records: int = 0

    def __post_init__(self) -> None:
        self._sink, self.heard = trio.open_memory_channel[Inbound](HEARD)

    @property
    def me(self) -> PeerId:
        """Our peer id."""
        return self.signer.peer

    @property
    def manifest(self) -> Manifest:
        """The model and the run."""
        return self.file.manifest

    @property
    def swarm(self) -> SwarmId:
        """The swarm's id."""
        return self.file.swarm

    async def say(self, peer: PeerId, message: Message, payload: bytes = b"") -> bool:
        """Send a message, waiting for room; return whether there was a link."""
        try:
            await arrivals.say(self.network, peer, message, payload)
        except arrivals.PeerUnreachable:
            return False
        return True

    async def say_to_all(self, message: Message, payload: bytes = b"") -> None:
        """Send a message to every honest peer that has a link."""
        for peer in list(self.peers):
            await self.say(peer, message, payload)

    def advert(self, serves: Sequence[SeatStatus] = (), **changes: object) -> Records:
        """Return a plausible signed advert of ours; ``serves``: the stages that it boasts of,
        ``changes``: what else is otherwise in it."""
        self._records += 1
        number = int(time.time() * 1000) + self._records
        said = advert(self.me, self.network.addresses, serves=tuple(serves), **changes)
        return Records([record_of(self.signer, self.swarm, ADVERT, ADVERTS.encode(said), number)])

    async def introduce(self, serves: Sequence[SeatStatus] = ()) -> None:
        """Become a member: send our advert to everybody we are linked with."""
        await self.say_to_all(self.advert(serves))

    def pulse(self, seats: Sequence[SeatStatus] = ()) -> None:
        """Begin to send a heartbeat every second that says these seats (``seats`` changes it)."""
        self.seats = list(seats)
        self.nursery.start_soon(self._pulse)

    async def another(self) -> Stranger:
        """Return a second identity with links of its own to the same peers."""
        how = self.file, self.addresses, self.host
        other: Stranger = await self.nursery.start(_run_stranger, *how)
        return other

    async def _pulse(self) -> None:
        while True:
            for peer in list(self.peers):
                self._beat(peer)
            await trio.sleep(PULSE_S)

    def _beat(self, peer: PeerId) -> None:
        self._seq += 1
        echo = self._newest.get(peer, -1) + 1
        beat = Heartbeat(self._seq, list(self.seats), echo)
        self.network.post(peer, beat)

    async def listen(self) -> None:
        """Greet who comes up and take in what is said, until cancelled."""
        async for event in self.network.events:
            match event:
                case PeerUp(peer):
                    await self.say(peer, self._hello())
                case PeerDown(peer):
                    if peer in self.peers:
                        self.peers.remove(peer)
                case Inbound(peer, Hello()):
                    if peer not in self.peers:
                        self.peers.append(peer)
                case Inbound(peer, message):
                    if isinstance(message, Heartbeat):
                        self._newest[peer] = max(message.seq, self._newest.get(peer, 0))
                    self._keep(event)

    def _keep(self, event: Inbound) -> None:
        try:
            self._sink.send_nowait(event)
        except trio.WouldBlock:
            with suppress(trio.WouldBlock):
                self.heard.receive_nowait()
            with suppress(trio.WouldBlock):
                self._sink.send_nowait(event)

    def _hello(self) -> Hello:
        return Hello(PROTOCOL, self.swarm, "volunteer/0.1.0")


@asynccontextmanager
async def open_stranger(
    file: SwarmFile, addresses: Sequence[str], host: str
) -> AsyncIterator[Stranger]:
    """Open a new identity at an address of ours and link it with every address that answers."""
    seed = secrets.token_bytes(32)
    async with open_network(seed, (host, 0)) as network, trio.open_nursery() as nursery:
        stranger = Stranger(Signer(seed), network, file, tuple(addresses), nursery, host)
        nursery.start_soon(stranger.listen)
        for address in addresses:
            with suppress(NetworkError):
                await network.connect(address)
        with trio.move_on_after(5.0):
            while len(stranger.peers) < len(network.statistics().peers):
                await trio.sleep(0.05)
        yield stranger
        nursery.cancel_scope.cancel()


async def _run_stranger(
    file: SwarmFile,
    addresses: Sequence[str],
    host: str,
    task_status: trio.TaskStatus[Stranger] = trio.TASK_STATUS_IGNORED,
) -> None:
    async with open_stranger(file, addresses, host) as stranger:
        task_status.started(stranger)
        await trio.sleep_forever()


async def perform(
    attack: Attack, file: SwarmFile, addresses: Sequence[str], lasts_s: float, host: str
) -> None:
    """Link up, attack for so many seconds, and leave."""
    assert attack.stranger is not None
    with trio.move_on_after(lasts_s + 30.0):
        async with open_stranger(file, addresses, host) as stranger:
            print("begun", flush=True)
            with trio.move_on_after(lasts_s):
                await attack.stranger(stranger)
                await trio.sleep_forever()


def main() -> None:
    """Read the arguments and attack."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("--swarm", type=Path, required=True)
    parser.add_argument("--peer", action="append", required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--host", required=True, help="our own address")
    arguments = parser.parse_args()
    file = parse_swarm_file(arguments.swarm.read_text())
    how = attack_named(arguments.name), file, arguments.peer, arguments.seconds, arguments.host
    trio.run(perform, *how)


if __name__ == "__main__":
    main()
