"""The relays of all volunteers, in a thread of their own beside the harness, which only watches.

A context manager: the thread and all its sockets end with the block. Its methods may be called from
the thread that entered it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import psutil
import trio

from client.errors import UserError
from client.lab.chaos.relay import Relay, Rules, Shape

START_S = 10.0


class Wires:
    """Relays by the names of the volunteers behind them.

    Args:
        processes: the process of every running volunteer, by name, which identifies diallers.
    """

    def __init__(self, processes: Callable[[], dict[str, int]]) -> None:
        self._processes = processes
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="relays", daemon=True)
        self._token: trio.lowlevel.TrioToken
        self._nursery: trio.Nursery
        self._rules: Rules

    def __enter__(self) -> Wires:
        self._thread.start()
        if not self._ready.wait(START_S):
            raise UserError("the relays did not start in time")
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(lambda: self._nursery.cancel_scope.cancel())
        self._thread.join(START_S)

    def add(self, name: str, target_port: int) -> int:
        """Put a relay in front of a volunteer that listens on a port; return the relay's port."""
        relay = Relay(name, target_port, self._rules, self._who)
        port: int = trio.from_thread.run(
            partial(self._nursery.start, relay.serve), trio_token=self._token
        )
        return port

    def surround(self, name: str, shape: Shape) -> None:
        """Shape all traffic of one volunteer."""
        rule = partial(self._rules.set, name, shape)
        trio.from_thread.run_sync(rule, trio_token=self._token)

    def _run(self) -> None:
        trio.run(self._main)

    async def _main(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._rules = Rules()
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            self._ready.set()
            await trio.sleep_forever()

    async def _who(self, their_port: int, our_port: int) -> str | None:
        processes = self._processes()
        return await trio.to_thread.run_sync(owner_of, their_port, our_port, processes)


def owner_of(their_port: int, our_port: int, processes: dict[str, int]) -> str | None:
    """Return the process that holds the socket from one port of this machine to another."""
    for name, pid in processes.items():
        try:
            sockets = psutil.Process(pid).net_connections(kind="tcp4")
        except psutil.Error:
            continue
        for found in sockets:
            ends = (found.laddr, found.raddr)
            if all(ends) and (found.laddr.port, found.raddr.port) == (their_port, our_port):
                return name
    return None
