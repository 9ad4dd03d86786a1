"""Every message type x malformed, truncated, oversized, wrongly typed: refused, never a crash."""

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from protocol import limits
from protocol.errors import RemoteProtocolError
from protocol.wire.messages import (
    ENVELOPES,
    MESSAGES,
    AuditReply,
    Backward,
    Chunk,
    Forward,
    Goodbye,
    HeldOut,
    Message,
    Reduced,
    Segment,
    WaypointChain,
    decode_message,
    encode_message,
)
from tests.support.protocol_examples import any_message, messages_of

QUICK = settings(
    max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
every_type = pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)


def refuse(header: bytes) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        decode_message(header)
    assert caught.value.penalty > 0


def parts(message: Message) -> list[object]:
    """The message as plain msgpack values: the tag, then the fields."""
    decoded = msgspec.msgpack.decode(encode_message(message))
    assert isinstance(decoded, list)
    return decoded


@every_type
@QUICK
@given(data=st.data())
def test_round_trip(kind: type[Message], data: st.DataObject) -> None:
    message = data.draw(messages_of(kind))
    assert decode_message(encode_message(message)) == message


@every_type
@QUICK
@given(data=st.data())
def test_no_spoiled_copy_parses(kind: type[Message], data: st.DataObject) -> None:
    message = data.draw(messages_of(kind))
    header, fields = encode_message(message), parts(message)
    for length in range(len(header)):
        refuse(header[:length])
    refuse(header + b"\0")
    refuse(msgspec.msgpack.encode([*fields, 0]))
    for index, value in enumerate(fields[1:], start=1):
        for wrong in wrong_values(value):
            refuse(msgspec.msgpack.encode([*fields[:index], wrong, *fields[index + 1 :]]))


def wrong_values(value: object) -> list[object]:
    """Of another type, out of range, not finite, or above every bound."""
    wrong: list[object] = [{"a": 1}, msgspec.msgpack.Ext(4, b"x"), [[[[]]]]]
    if isinstance(value, int | float) and not isinstance(value, bool):
        wrong += [float("nan"), float("inf"), float("-inf")]
        wrong += (1e46, -1e46) if isinstance(value, float) else (2**64 - 1, -1)
    if isinstance(value, bytes | str | list) and value:
        wrong.append(value * (1 + limits.MAX_HEADER_BYTES // len(value)))
    return wrong


@given(st.binary(max_size=200))
def test_garbage(header: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_message(header)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_flipped_bytes_are_refused_or_parse_within_bounds(data: st.DataObject) -> None:
    header = bytearray(encode_message(data.draw(any_message())))
    index = data.draw(st.integers(0, len(header) - 1))
    header[index] ^= data.draw(st.integers(1, 255))
    try:
        message = decode_message(bytes(header))
    except RemoteProtocolError:
        return
    assert decode_message(encode_message(message)) == message


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"\xc0",
        msgspec.msgpack.encode([]),
        msgspec.msgpack.encode(["Nonsense"]),
        msgspec.msgpack.encode({"type": "Goodbye", "reason": ""}),
        msgspec.msgpack.encode([["Goodbye"], ""]),
        b"\x92\xa4\xff\xff\xff\xff\x01",  # a tag that is not UTF-8
        b"\x91" * 5000,  # nested beyond the stack
        b"\xdd\xff\xff\xff\xff",  # an array that claims 4 Gi elements
        b"\x92\xa7Records\xc6\xff\xff\xff\xff",  # bytes that claim 4 GiB
        b"\x92\xa7Goodbye\xdb\xff\xff\xff\xffx",
    ],
    ids=repr,
)
def test_crafted_headers(header: bytes) -> None:
    refuse(header)


@pytest.mark.parametrize(("kind", "bounds"), ENVELOPES.items())
def test_statements_are_as_many_as_their_kind_allows(kind: str, bounds: tuple[int, int]) -> None:
    least, most = bounds
    envelope = ["signer", "kind", b"body", bytes(64)]
    for count in (least - 1, most + 1):
        refuse(msgspec.msgpack.encode(["Statements", kind, [envelope] * count]))
    for count in bounds:
        decode_message(msgspec.msgpack.encode(["Statements", kind, [envelope] * count]))


def test_a_header_over_the_limit_is_not_even_parsed() -> None:
    refuse(encode_message(Goodbye("")) + b"\0" * limits.MAX_HEADER_BYTES)


def test_only_tensors_chunks_and_chains_carry_a_payload() -> None:
    tensors = {Forward, Backward, HeldOut, Segment, Reduced, AuditReply}
    most = {kind: kind.route.payload_limit for kind in MESSAGES}
    assert {kind for kind in most if most[kind]} == tensors | {Chunk, WaypointChain}
    assert most[Chunk] == most[WaypointChain] == limits.CHUNK_BYTES
