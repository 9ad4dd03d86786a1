"""A lying member: a whole volunteer whose messages to others are distorted on their way out.

    python -m tests.hostile.member NAME join --swarm FILE --headless …

Node and worker are the real ones. It is honest until the file that ``LIES_FROM`` names is there,
so that the same swarm is measured with it before and after it begins to lie.
"""

import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from client.cli.main import main as volunteer
from client.compute import process
from client.net.libp2p_network import Libp2pNetwork, open_network
from client.node import node
from client.train.swarm.own_advert import OwnAdvert
from protocol.ids import PeerId, Stage
from protocol.invite import parse_swarm_file
from protocol.manifest import Manifest
from protocol.wire.envelope import Signer
from protocol.wire.messages import Message
from tests.hostile.attack import Attack, Distorter, attack_named

LIES_FROM = "HOSTILE_LIES_FROM"
LOOK_S = 0.1


class LyingNetwork:
    """Stands before a node's network; once it lies, every message passes the distorter."""

    def __init__(self, network: Libp2pNetwork, distorter: Distorter, nursery: trio.Nursery) -> None:
        self._network, self._distorter, self._nursery = network, distorter, nursery
        self.lies = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._network, name)

    def post(self, peer: PeerId, message: Message, payload: bytes = b"") -> bool:
        """Queue what the distorter makes of it."""
        took = [self._network.post(peer, *each) for each in self._distorted(peer, message, payload)]
        return all(took)

    def _distorted(
        self, peer: PeerId, message: Message, payload: bytes
    ) -> Sequence[tuple[Message, bytes]]:
        if not self.lies:
            return [(message, payload)]
        at_once = []
        for out in self._distorter.outgoing(peer, message, payload):
            if len(out) == 3:
                self._nursery.start_soon(self._later, peer, *out)
            else:
                at_once.append(out)
        return at_once

    async def _later(self, peer: PeerId, message: Message, payload: bytes, delay_s: float) -> None:
        await trio.sleep(delay_s)
        self._network.post(peer, message, payload)

    async def wait_to_lie(self, file: Path) -> None:
        """Begin to lie when the file is there."""
        while not file.exists():
            await trio.sleep(LOOK_S)
        self.lies = True


def main() -> None:
    """Run ``volunteer`` with the rest of the arguments, lying."""
    attack = attack_named(sys.argv[1])
    flag = sys.argv.index("--swarm")
    manifest = parse_swarm_file(Path(sys.argv[flag + 1]).read_text()).manifest
    _lie(attack, manifest)
    command = sys.argv.index("join")  # the arguments before it started this program
    sys.argv[:command] = ["volunteer"]
    raise SystemExit(volunteer())


def _sit(stage: Stage, manifest: Manifest) -> None:
    """Let the node say that it can serve this stage only."""
    others, change = {*range(manifest.stage_count)} - {stage}, OwnAdvert.change

    def say(self: OwnAdvert, **changes: Any) -> None:
        if "unable" in changes:
            changes["unable"] = tuple(sorted(others.union(changes["unable"])))
        change(self, **changes)

    OwnAdvert.change = say  # type: ignore[method-assign]


def _work(lie: str, file: str) -> None:
    """Let the node start workers that lie."""
    spawn = process._spawn
    lying = (sys.executable, "-m", "tests.hostile.lying_worker", lie, file)
    process._spawn = lambda _, *shared: spawn(lying, *shared)  # type: ignore[assignment]


def _lie(attack: Attack, manifest: Manifest) -> None:
    """Let the node open a network that lies, or a worker."""
    make = attack.member or Distorter
    _sit(Stage(min(attack.stage, manifest.stage_count - 1)), manifest)
    file = os.environ[LIES_FROM]
    if attack.work:
        _work(attack.work, file)

    @asynccontextmanager
    async def lying(*arguments: Any, **keywords: Any) -> AsyncIterator[Any]:
        async with open_network(*arguments, **keywords) as real, trio.open_nursery() as nursery:
            distorter = make(real.peer_id, manifest)
            distorter.signer = Signer(arguments[0])
            liar = LyingNetwork(real, distorter, nursery)
            nursery.start_soon(liar.wait_to_lie, Path(file))
            yield liar
            nursery.cancel_scope.cancel()

    node.open_network = lying  # type: ignore[assignment]


if __name__ == "__main__":
    main()
