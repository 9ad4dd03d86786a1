"""Keeps a port mapped until SIGTERM: ``python -m tests.support.map_port PORT upnp|pinhole``.

Says ``mapped HOST PORT`` or ``none`` whenever that changes. It listens on the port and takes
connections, so that others can see whether they get in.
"""

import signal
import sys
from functools import partial

import trio

from client.net import port_mapper
from client.net.gateway import Mapped, Way
from client.net.port_mapper import PortMapper


async def main(port: int, way: Way) -> None:
    """See the module's docstring."""
    port_mapper.LOOK_S = 0.2  # type: ignore[misc]

    def tell(mapped: Mapped | None) -> None:
        print(f"mapped {mapped.host} {mapped.port}" if mapped else "none", flush=True)

    async def take(stream: trio.SocketStream) -> None:
        await stream.aclose()

    mapper = PortMapper(way, lambda: port, (20_001, 20_002), tell)
    async with trio.open_nursery() as nursery:
        host = "::" if way == "pinhole" else None
        nursery.start_soon(partial(trio.serve_tcp, take, port, host=host))
        nursery.start_soon(mapper.run)
        with trio.open_signal_receiver(signal.SIGTERM) as signals:
            async for _ in signals:
                nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main, int(sys.argv[1]), sys.argv[2])
