"""Where a peer may listen."""

from __future__ import annotations

import pytest

from client.net.addresses import parse_destination, parse_listen
from client.net.errors import AddressError
from protocol.address import Address

HOST = "127.0.0.1"
PEER = "12D3KooWGC6TvWhfapngX6wvJHMYvKpDMXPb3ZnCZ6dMoaMtimQ5"


def test_where_to_listen() -> None:
    here = Address("ip4", HOST, 0)
    assert parse_listen((HOST, 0)) == parse_listen(f"/ip4/{HOST}/tcp/0") == [here]
    for wrong in ("/dns4/localhost/tcp/1", f"/ip4/{HOST}/tcp/1/p2p/{PEER}", "/ip4/x/tcp/1", ""):
        with pytest.raises(AddressError, match="cannot listen on"):
            parse_listen(wrong)
    assert parse_listen(("::1", 7)) == parse_listen("/ip6/::1/tcp/7") == [Address("ip6", "::1", 7)]
    assert parse_listen(("all", 7)) == [Address("ip4", "0.0.0.0", 7), Address("ip6", "::", 7)]
    for pair in ((HOST, -1), (HOST, 65536), ("localhost", 1), ("", 1), ("fe80::1%lo", 1)):
        with pytest.raises(AddressError, match="not an IP address and port"):
            parse_listen(pair)
    with pytest.raises(AddressError, match="expected"):
        parse_destination("/ip4/127.0.0.1/tcp/0")
