"""Hosts by their numbers: which count as one, and which the internet reaches."""

import pytest

from protocol.hosts import is_global, is_loopback, kind_of, machine_of, number_of, prefix_of


@pytest.mark.parametrize(
    ("host", "kind", "machine", "prefix"),
    [
        ("8.8.4.4", "ip4", "8.8.4.4", "8.8.4"),
        ("2a11:1:2:3::4", "ip6", "2a11:1:2:3::/64", "2a11:1:2::/48"),
        ("2a11:1:2:3:ffff:ffff:ffff:ffff", "ip6", "2a11:1:2:3::/64", "2a11:1:2::/48"),
        ("2a11:1:2:4::4", "ip6", "2a11:1:2:4::/64", "2a11:1:2::/48"),
        ("2a11:1:3::", "ip6", "2a11:1:3::/64", "2a11:1:3::/48"),
    ],
)
def test_what_a_host_is_counted_by(host: str, kind: str, machine: str, prefix: str) -> None:
    assert (kind_of(host), machine_of(host), prefix_of(host)) == (kind, machine, prefix)


@pytest.mark.parametrize("host", ["8.8.4.4", "11.0.1.2", "2a11::1", "2001:4860:4860::8888"])
def test_the_internet_reaches(host: str) -> None:
    assert is_global(host)


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1", "10.0.0.1", "192.168.1.1", "100.64.0.1", "169.254.1.1", "224.0.0.1",
        "0.0.0.0", "::", "::1", "fe80::1", "fc00::1", "fd12:3456::1", "fec0::1", "ff02::1",
        "2001:db8::1", "node.example.org", "", "2a11::1%eth0", "::ffff:8.8.4.4",
    ],
)  # fmt: skip
def test_the_internet_does_not_reach(host: str) -> None:
    assert not is_global(host)


def test_loopback_and_names() -> None:
    assert is_loopback("127.3.0.1")
    assert is_loopback("::1")
    assert not is_loopback("::2")
    assert not is_loopback("128.0.0.1")
    assert number_of("localhost") is None
