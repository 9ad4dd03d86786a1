"""A port at which peers are awaited: each gets the connection from its host, strangers get none."""

import errno
import socket
import sys
from collections.abc import Iterator
from unittest.mock import Mock

import pytest
import trio

from client.net.rendezvous import await_at
from client.net.tcp import TCP
from protocol.address import Address

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other loopbacks have one address")
ONE, OTHER, STRANGER = "127.0.0.2", "127.0.0.3", "127.0.0.4"


@pytest.fixture
def port() -> Iterator[int]:
    """One that a connection of ours has already."""
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        taken.bind(("0.0.0.0", 0))
        yield int(taken.getsockname()[1])


async def dialled(host: str, port: int) -> trio.SocketStream:
    """Connect from a host's own address, as soon as somebody listens."""
    while True:
        opened = trio.socket.socket()
        try:
            await opened.bind((host, 0))
            await opened.connect(("127.0.0.1", port))
        except BaseException as error:
            opened.close()
            if not isinstance(error, ConnectionRefusedError):
                raise
            await trio.sleep(0.01)
        else:
            return trio.SocketStream(opened)


async def says(stream: trio.SocketStream, word: bytes) -> None:
    async with stream:
        await stream.send_all(word)


async def test_each_gets_whom_it_awaits_whoever_comes_first(port: int) -> None:
    heard: dict[str, bytes] = {}

    async def wait_for(host: str) -> None:
        with await_at(host, port) as rendezvous:
            async with await rendezvous.accept(host) as stream:
                heard[host] = await stream.receive_some(16)

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait_for, ONE)
            nursery.start_soon(wait_for, OTHER)
            async with await dialled(STRANGER, port) as stranger:
                assert await stranger.receive_some(1) == b""
            await says(await dialled(OTHER, port), b"other")
            await says(await dialled(ONE, port), b"one")
    assert heard == {ONE: b"one", OTHER: b"other"}


async def test_nobody_listens_once_nobody_is_awaited(port: int) -> None:
    for _ in range(2):
        with trio.move_on_after(0.01), await_at(ONE, port) as rendezvous:
            await rendezvous.accept(ONE)
        with socket.socket() as late, pytest.raises(ConnectionRefusedError):
            late.connect(("127.0.0.1", port))


async def test_a_peer_that_cannot_be_dialled_is_met_when_it_comes(port: int) -> None:
    met: list[bytes] = []

    async def meet() -> None:
        async with TCP.dial(Address("ip4", ONE, 1), port) as stream:
            assert stream.remote_host == ONE
            met.append(await stream.receive_some(16))

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(meet)
            await says(await dialled(ONE, port), b"here")
    assert met == [b"here"]


async def test_a_connection_that_cannot_be_taken_ends_nothing(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with await_at(ONE, port) as rendezvous, trio.fail_after(20):
        accept, close = rendezvous._socket.accept, rendezvous._socket.close
        failures = [errno.EMFILE, errno.EHOSTUNREACH]

        def fails_at_first() -> object:
            if failures:
                raise OSError(failures.pop(), "cannot be taken")
            return accept()

        async def comes() -> None:
            await says(await dialled(ONE, port), b"one")

        monkeypatch.setattr(rendezvous, "_socket", Mock(accept=fails_at_first, close=close))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(comes)
            async with await rendezvous.accept(ONE) as stream:
                assert await stream.receive_some(16) == b"one"
        assert not failures
