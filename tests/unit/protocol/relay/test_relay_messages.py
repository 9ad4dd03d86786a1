"""The messages about circuits."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import RemoteProtocolError
from protocol.ids import peer_id_from_key
from protocol.relay.messages import (
    PROBE_FILLER_BYTES,
    Connect,
    DialBack,
    Moving,
    Punch,
    RelayMessage,
    Reserve,
    Status,
    Stop,
    WhereIs,
    decode_relay_message,
    encode_relay_message,
)

PEER = peer_id_from_key(b"\1" * 32)
FILLER = bytes(PROBE_FILLER_BYTES)


@pytest.mark.parametrize(
    "message",
    [
        Reserve(),
        Connect(PEER),
        WhereIs(PEER),
        Stop(PEER),
        Status("full"),
        Status("ok", "2001:db8::1"),
        DialBack(4001, FILLER),
        Moving(),
        Punch("203.0.113.9", 40_000),
        Status("busy"),
    ],
)
def test_messages_survive(message: RelayMessage) -> None:
    assert decode_relay_message(encode_relay_message(message)) == message


@pytest.mark.parametrize(
    "data",
    [
        b"",
        msgspec.msgpack.encode(["Connect", "x" * 65]),
        msgspec.msgpack.encode(["Connect", PEER, PEER]),
        msgspec.msgpack.encode(["Reserve", PEER]),  # nobody reserves in another's name
        msgspec.msgpack.encode(["Status", "fine"]),
        msgspec.msgpack.encode(["Status", "ok", "x" * 46]),
        msgspec.msgpack.encode(["DialBack", 0, FILLER]),
        msgspec.msgpack.encode(["DialBack", 4001, FILLER[1:]]),  # cheaper than what it asks for
        msgspec.msgpack.encode(["Punch", "203.0.113.9", 22]),  # a service of the system
        msgspec.msgpack.encode(["Punch", "x" * 46, 40_000]),
        msgspec.msgpack.encode(["Hello", 1]),
        b"\x91" * 1000,
    ],
)
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError) as refused:
        decode_relay_message(data)
    assert refused.value.penalty > 0


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_refused(data: bytes) -> None:
    try:
        message = decode_relay_message(data)
    except RemoteProtocolError:
        return
    assert decode_relay_message(encode_relay_message(message)) == message
