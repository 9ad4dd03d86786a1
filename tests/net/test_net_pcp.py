"""PCP: what is asked, what is answered, and what is no answer."""

import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.net import pcp
from client.net.pcp import Mapped, MappingRefused

NONCE = bytes(range(12))


def pcp_answer(
    *,
    result: int = 0,
    nonce: bytes = NONCE,
    protocol: int = 6,
    own: int = 4001,
    outer: int = 4002,
    host: bytes = bytes.fromhex("2a11" + "00" * 13 + "01"),
) -> bytes:
    head = struct.pack(">BBBBII12x", 2, 0x81, 0, result, 3600, 9)
    return head + struct.pack(">12sB3xHH16s", nonce, protocol, own, outer, host)


def test_pcp_as_its_document_says() -> None:
    request = pcp.ask_mapping(NONCE, "2a11::2", 4001, 3600)
    assert len(request) == 60
    assert request[:8].hex() == "0201000000000e10"
    assert request[8:24].hex() == "2a11" + "00" * 13 + "02"
    assert request[24:36] == NONCE
    assert request[36:44].hex() == "060000000fa10fa1"
    assert request[44:] == bytes(16)
    assert pcp.read_mapping(pcp_answer(), NONCE, 4001) == Mapped("2a11::1", 4002, 3600)


@pytest.mark.parametrize(
    "data",
    [
        b"", pcp_answer()[:59], pcp_answer(nonce=bytes(12)), pcp_answer(protocol=17),
        pcp_answer(own=4009), pcp_answer(outer=0), b"\3" + pcp_answer()[1:],
        pcp_answer()[:1] + b"\x01" + pcp_answer()[2:],
    ],
)  # fmt: skip
def test_what_is_no_answer_of_pcp(data: bytes) -> None:
    with pytest.raises(ValueError):
        pcp.read_mapping(data, NONCE, 4001)


def test_refusals_say_why() -> None:
    with pytest.raises(MappingRefused, match="does not allow"):
        pcp.read_mapping(pcp_answer(result=2), NONCE, 4001)
    with pytest.raises(MappingRefused, match="code 77"):
        pcp.read_mapping(pcp_answer(result=77), NONCE, 4001)
    with pytest.raises(MappingRefused, match="no room"):
        pcp.read_mapping(pcp_answer(result=8), NONCE, 4001)
    with pytest.raises(MappingRefused, match="NAT-PMP only"):
        pcp.read_mapping(b"\0\x81\0\1" + bytes(8), NONCE, 4001)


def _changed(data: bytes, place: int, byte: int) -> bytes:
    return data[:place] + bytes([byte]) + data[place + 1 :]


answers = st.one_of(
    st.binary(max_size=1100),
    st.builds(_changed, st.just(pcp_answer()), st.integers(0, 59), st.integers(0, 255)),
)


@given(answers)
def test_hostile_bytes_are_an_answer_a_refusal_or_nothing(data: bytes) -> None:
    with suppress(ValueError, MappingRefused):
        assert isinstance(pcp.read_mapping(data, NONCE, 4001), Mapped)
