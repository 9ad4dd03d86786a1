"""Bodies of records: one encoding each; bad input is refused with a reason."""

from __future__ import annotations

from typing import Annotated

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import LocalProtocolError, RemoteProtocolError
from protocol.wire.canonical import Canonical
from tests.support.protocol_examples import peer


class Body(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    name: str
    share: float
    count: Annotated[int, msgspec.Meta(ge=0)] = 0


BODIES = Canonical(Body, "thing")


@given(st.text(), st.floats(allow_nan=False), st.integers(0, 2**60))
def test_round_trip(name: str, share: float, count: int) -> None:
    body = Body(name, share, count)
    assert BODIES.parse_own(BODIES.encode(body), peer(1), peer(1)) == body


def test_our_own_mistakes_are_ours() -> None:
    assert BODIES.parse(BODIES.encode(Body("", 1, 2))).share == 1.0
    with pytest.raises(LocalProtocolError):
        BODIES.encode(Body("", 1.0, -1))


@pytest.mark.parametrize(
    "hostile",
    [
        b"",
        b"\xc1",
        b"\x93\xa0\xcb\x00",
        b"\x93\xa2\xff\xfe\xcb" + bytes(8) + b"\x00",  # no UTF-8
        b"\x93\xa0\xcb" + bytes(8) + b"\xff",  # negative
        b"\x93\xa0\xcb" + bytes(8) + b"\xcc\x00",  # a longer form of 0
        b"\x92\xa0\xcb" + bytes(8),  # a field left out
        b"\x91" * 100_000,
    ],
)
def test_what_is_not_the_one_encoding_is_refused(hostile: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="thing-malformed"):
        BODIES.parse(hostile)


def test_only_the_author_writes_under_its_key() -> None:
    with pytest.raises(RemoteProtocolError, match="thing-forged"):
        BODIES.parse_own(BODIES.encode(Body("", 1.0)), peer(1), peer(2))
