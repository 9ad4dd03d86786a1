"""The kinds of home routers, as rules for nftables and a configuration of miniupnpd; only text.

A kind says which port the world sees (its *mapping*) and who may answer to it (its *filter*); the
words are RFC 4787's. In all of them the device towards the world is ``wan``, that of the home
``lan``. The cones keep the local port, as Linux does where it is free. Mappings are kept for two
hours, as RFC 5382 asks of TCP.
"""

from enum import Enum


class Router(Enum):
    """What a home router does with TCP and UDP over IPv4."""

    FULL_CONE = "full cone"
    """One port for all remote ends; anybody may use it."""
    ADDRESS_RESTRICTED = "address-restricted"
    """One port; those addresses may use it that were written to, from any port."""
    PORT_RESTRICTED = "port-restricted"
    """One port; only the very ends that were written to may use it. Drops what it does not know."""
    ANSWERING = "answering"
    """As port-restricted, but it answers what it does not know with RST."""
    SYMMETRIC = "symmetric"
    """Another port for each remote end."""


class IPv6(Enum):
    """What a place has of IPv6."""

    NONE = "none"
    OPEN = "open"
    FILTERED = "filtered"
    """Addresses of its own behind a stateful firewall: who was not written to is not let in."""
    BROKEN = "broken"
    """Addresses and a route, but nothing comes back."""


_MAPPED = {
    Router.FULL_CONE: ("", ""),
    Router.ADDRESS_RESTRICTED: (" . ip daddr", " . ip saddr"),
}
"""What the key of the table of mappings has beside the port, on the way out and in."""


def rules(router: Router, *, firewall: bool = False) -> str:
    """Return the rules of a router, for ``nft -f``.

    Args:
        firewall: whether it keeps strangers from the home's IPv6 addresses.
    """
    out, back = _mapping(router)
    key = "inet_service . ipv4_addr" if router is Router.ADDRESS_RESTRICTED else "inet_service"
    return f"""
table inet home {{
  map mapped {{
    type {key} : ipv4_addr . inet_service
    flags dynamic, timeout
    timeout 2h
  }}
  chain miniupnpd {{ }}
  chain prerouting_miniupnpd {{ }}
  chain postrouting_miniupnpd {{ }}
  chain prerouting {{
    type nat hook prerouting priority dstnat; policy accept;
    iifname "wan" fib daddr type local jump prerouting_miniupnpd
    {f'iifname "wan" fib daddr type local {back}' if back else ""}
  }}
  chain postrouting {{
    type nat hook postrouting priority srcnat; policy accept;
    oifname "wan" jump postrouting_miniupnpd
    {f'oifname "wan" {out}' if out else ""}
    oifname "wan" meta nfproto ipv4 masquerade {"fully-random" * (router is Router.SYMMETRIC)}
  }}
  chain forward {{
    type filter hook forward priority filter; policy accept;
    ct state established,related accept
    ct status dnat accept
    iifname "wan" jump miniupnpd
    iifname "wan" meta nfproto ipv4 drop
    {'iifname "wan" meta l4proto != ipv6-icmp drop' if firewall else ""}
  }}
  chain input {{
    type filter hook input priority filter; policy accept;
    iifname "wan" ct state established,related accept
    iifname "wan" meta l4proto {{ icmp, ipv6-icmp }} accept
    {"" if router is Router.ANSWERING else 'iifname "wan" drop'}
  }}
}}
"""


def _mapping(router: Router) -> tuple[str, str]:
    if router not in _MAPPED:
        return "", ""
    there, back = _MAPPED[router]
    ports = "meta nfproto ipv4 meta l4proto { tcp, udp }"
    return (
        f"{ports} update @mapped {{ th sport{there} : ip saddr . th sport }}",
        f"{ports} dnat ip to th dport{back} map @mapped",
    )


def port_mapper(uuid: str, folder: str, ipv6: bool) -> str:
    """Return the configuration of a miniupnpd that speaks UPnP and PCP to the home."""
    return f"""
ext_ifname=wan
listening_ip=lan
http_port=0
enable_upnp=yes
enable_natpmp=yes
ipv6_disable={"no" if ipv6 else "yes"}
secure_mode=yes
min_lifetime=20
max_lifetime=86400
upnp_table_name=home
upnp_nat_table_name=home
upnp_forward_chain=miniupnpd
upnp_nat_chain=prerouting_miniupnpd
upnp_nat_postrouting_chain=postrouting_miniupnpd
lease_file={folder}/leases
system_uptime=yes
notify_interval=30
uuid={uuid}
allow 1024-65535 0.0.0.0/0 1024-65535
deny 0-65535 0.0.0.0/0 0-65535
"""
