"""Peer ids: the libp2p spelling, canonical and bounded."""

import contextlib

import pytest
from base58 import b58decode
from hypothesis import given
from hypothesis import strategies as st

from protocol.ids import key_from_peer_id, parse_peer_id, peer_id_from_key, rank


@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_key_of_another_length_has_none(size: int) -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        peer_id_from_key(bytes(size))


@given(st.binary(min_size=32, max_size=32))
def test_a_peer_id_contains_its_key(key: bytes) -> None:
    peer = peer_id_from_key(key)
    assert peer.startswith("12D3KooW")
    assert len(peer) == 52
    assert key_from_peer_id(peer) == key
    assert parse_peer_id(peer) == peer


def test_the_spelling_is_that_of_libp2p() -> None:
    # reference value: RFC 8032 test 1's public key, encoded by go-libp2p's rules
    key = bytes.fromhex("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a")
    multihash = bytes.fromhex("0024080112") + b"\x20" + key
    assert b58decode(peer_id_from_key(key)) == multihash


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1",
        "12D3KooW",
        "0OIl",
        "é",
        "1" * 65,
        "z" * 10_000,
        "QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N",  # a hash of an RSA key
        "12D3KooWE14zkP3jX9MNNJY6MVDbF8uvrEFCUWvFW9FTQH5y2yK ",
        "12D3KooWE14zkP3jX9MNNJY6MVDbF8uvrEFCUWvFW9FTQH5y2y\n\n",
        "1" + "12D3KooWE14zkP3jX9MNNJY6MVDbF8uvrEFCUWvFW9FTQH5y2yKp",
    ],
)
def test_what_is_no_peer_id_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_peer_id(text)


@given(st.text(max_size=70))
def test_no_text_crashes_the_parser(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert parse_peer_id(text) == text


def test_rank_separates_its_parts() -> None:
    assert rank("a", "bc") != rank("ab", "c")
    assert rank(1, 2) == rank("1", "2")
    assert len(rank()) == 16
