"""A stand-in for a running node, in a thread of its own, because commands block."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import trio

from client.control.server import serve_control
from client.control.sockets import socket_path
from client.store.paths import make_private, runtime_folder
from tests.support.control_fakes import FakeProvider


@contextmanager
def node_of(
    home: Path, provider: FakeProvider, ended: Callable[[], bool] = lambda: False
) -> Iterator[Path]:
    """A node of this home until the block or the node has ended; yields its control socket."""
    path = socket_path(make_private(runtime_folder(home)), "ab" * 32, "12D3KooWexamplepeer")
    up, stop = threading.Event(), threading.Event()

    async def serve() -> None:
        async with serve_control(path, provider):
            up.set()
            while not (stop.is_set() or ended()):
                await trio.sleep(0.01)

    thread = threading.Thread(target=trio.run, args=(serve,))
    thread.start()
    try:
        assert up.wait(10)
        yield path
    finally:
        stop.set()
        thread.join()
