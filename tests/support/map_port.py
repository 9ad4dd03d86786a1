"""Keeps a port mapped until SIGTERM: ``python -m tests.support.map_port PORT [WAY]``.

Says ``mapped HOST PORT WAY`` or ``none`` whenever that changes. It listens on the port and takes
connections, so that others can see whether they get in. WAY: only this one.
"""

from __future__ import annotations

import os
import signal
import sys
from functools import partial

import trio

from client.net import port_mapper
from client.net.port_mapper import PortMapper
from protocol.port_mapping.mapped import PINHOLE, WAYS, Mapped


async def main(port: int, way: str | None) -> None:
    """See the module's docstring."""
    ways = WAYS if way is None else tuple(known for known in (*WAYS, *PINHOLE) if known == way)
    port_mapper.LOOK_S = 0.2  # type: ignore[misc]

    def tell(mapped: Mapped | None) -> None:
        how = mapper.machine.way
        print(f"mapped {mapped.host} {mapped.port} {how}" if mapped else "none", flush=True)

    async def take(stream: trio.SocketStream) -> None:
        await stream.aclose()

    mapper = PortMapper(lambda: port, (20_001, 20_002), os.urandom(12), tell, ways)
    async with trio.open_nursery() as nursery:
        host = "::" if ways == PINHOLE else None
        nursery.start_soon(partial(trio.serve_tcp, take, port, host=host))
        nursery.start_soon(mapper.run)
        with trio.open_signal_receiver(signal.SIGTERM) as signals:
            async for _ in signals:
                nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main, int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None)
