"""Questions to a router that is a socket of this machine."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator

import pytest
import trio
from trio.testing import MockClock

from client.net.gateway import WAITS_S, MappingRefused, _answer, _connected


@pytest.fixture
async def router() -> AsyncIterator[trio.socket.SocketType]:
    with trio.socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as opened:
        await opened.bind(("127.0.0.1", 0))
        yield opened


def only_yes(data: bytes) -> str:
    if data != b"yes":
        raise ValueError(data)
    return "yes"


async def test_a_router_that_says_nothing_is_asked_several_times_and_given_up(
    router: trio.socket.SocketType, autojump_clock: MockClock
) -> None:
    asking = await _connected(socket.AF_INET, router.getsockname())
    with asking, pytest.raises(MappingRefused, match="no answer from the router"):
        await _answer(asking, b"?", only_yes)
    assert trio.current_time() == pytest.approx(sum(WAITS_S))
    for _ in WAITS_S:
        assert await router.recv(10) == b"?"


async def test_what_is_no_answer_is_ignored(router: trio.socket.SocketType) -> None:
    with await _connected(socket.AF_INET, router.getsockname()) as asking:
        for words in (b"noise", b"yes"):
            await router.sendto(words, asking.getsockname())
        assert await _answer(asking, b"?", only_yes) == "yes"


async def test_a_router_without_such_a_service_is_named() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as closed:
        closed.bind(("127.0.0.1", 0))
        place = closed.getsockname()
    asking = await _connected(socket.AF_INET, place)
    with asking, pytest.raises(MappingRefused, match="the router: Connection refused"):
        await _answer(asking, b"?", only_yes)
