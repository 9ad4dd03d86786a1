"""The processes of the attacks on relays, which answer line by line."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import trio

from client.net.libp2p_network import Libp2pNetwork


async def talk(first: str, tell: Callable[[], dict[str, Any]]) -> None:
    """Say a line, then answer every line of stdin until its end."""
    print(first, flush=True)
    async for line in trio.wrap_file(sys.stdin):
        if line.strip():
            print(json.dumps(tell()), flush=True)


async def reserved(network: Libp2pNetwork, relay_address: str) -> None:
    """Let a network be reached through a relay."""
    name = await network.connect(relay_address)
    network.reaching.update({name: [relay_address]}, needed=True)
    while not network.reaching.addresses:
        await trio.sleep(0.01)


class Process:
    """One of them, in a role."""

    def __init__(self, role: str, host: str, *arguments: str, within: Sequence[str] = ()) -> None:
        program = (sys.executable, "-m", "tests.hostile.relays", "--peer", role, host, *arguments)
        self.process = subprocess.Popen(
            [*within, *program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.first = self._line()

    def ask(self) -> dict[str, Any]:
        """Let it tell of itself."""
        assert self.process.stdin is not None
        self.process.stdin.write("?\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._line())
        return answer

    def end(self) -> None:
        """Kill it."""
        self.process.kill()
        self.process.communicate()

    def _line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        if not line:
            raise RuntimeError(f"{self.process.args!r} ended")
        return line
