"""The options of a TCP connection, by their numbers on each system."""

import socket
import sys
from unittest.mock import Mock

import pytest

from client.net.tcp import UNSENT_BYTES, TcpStream


@pytest.mark.parametrize(
    ("system", "option"),
    [("linux", 25), ("darwin", 0x201), ("freebsd14", None)],  # linux/tcp.h, XNU's netinet/tcp.h
)
def test_few_bytes_stay_unsent_where_the_system_has_that_option(
    system: str, option: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = Mock()
    stream.socket.getsockname.return_value = "127.0.0.1", 4001
    stream.socket.getpeername.return_value = "127.0.0.1", 4002
    monkeypatch.setattr(sys, "platform", system)
    TcpStream(stream)
    kept = [call.args for call in stream.setsockopt.mock_calls]
    numbers = [number for _, number, value in kept if value == UNSENT_BYTES]
    assert numbers == ([] if option is None else [option])
    assert (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1) in kept
