"""The options of a TCP connection, by their numbers on each system."""

from __future__ import annotations

import socket
import sys
from typing import Any, cast

import pytest

from client.net.tcp import UNSENT_BYTES, TcpStream


class Recorder:
    """Stands for a stream and its socket; keeps what is set."""

    def __init__(self) -> None:
        self.set: dict[tuple[int, int], int] = {}
        self.socket = self

    def getsockname(self) -> tuple[str, int]:
        return "127.0.0.1", 4001

    def getpeername(self) -> tuple[str, int]:
        return "127.0.0.1", 4002

    def setsockopt(self, level: int, option: int, value: int) -> None:
        self.set[level, option] = value


@pytest.mark.parametrize(
    ("system", "option"),
    [("linux", 25), ("darwin", 0x201), ("freebsd14", None)],  # linux/tcp.h, XNU's netinet/tcp.h
)
def test_few_bytes_stay_unsent_where_the_system_has_that_option(
    system: str, option: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = Recorder()
    monkeypatch.setattr(sys, "platform", system)
    TcpStream(cast(Any, stream))
    numbers = [number for (_, number), value in stream.set.items() if value == UNSENT_BYTES]
    assert numbers == ([] if option is None else [option])
    assert stream.set[socket.IPPROTO_TCP, socket.TCP_NODELAY] == 1
