"""Asks this network's router by UPnP to map a port, in a process of its own.

Any machine of the network may answer as the router, and the library takes as many bytes as it
sends, as slowly as it likes, and reads them in C. So that is done where there is little memory,
little time and nothing to lose.

    python -m client.net.upnp SECONDS map OUTER-PORT OWN-PORT LEASE-S
    python -m client.net.upnp SECONDS end OUTER-PORT

It writes the router's outer address, or why there is no mapping, with exit status 1.
"""

import ipaddress
import resource
import signal
import sys
from collections.abc import Sequence
from typing import Any, Final

MEMORY_BYTES: Final = 128 << 20
SEARCH_MS: Final = 2500
ABOUT: Final = "volunteer"
"""What the router's owner reads in its list of mappings."""


def main(arguments: Sequence[str]) -> int:
    """Ask within the bounds of this process."""
    signal.setitimer(signal.ITIMER_REAL, float(arguments[0]))
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    what, ports = arguments[1], [int(argument) for argument in arguments[2:]]
    try:
        router, host = _router()
    except Exception:  # the library raises nothing else: "Success" where there is no router
        print("no router with UPnP answers")
        return 1
    try:
        if what == "map":
            outer_port, own_port, lease_s = ports
            router.addportmapping(outer_port, "TCP", router.lanaddr, own_port, ABOUT, "", lease_s)
        else:
            router.deleteportmapping(ports[0], "TCP")
    except Exception as error:
        print(error)
        return 1
    print(host)
    return 0


def _router() -> tuple[Any, str]:
    """Return miniupnpc's handle of the router, and the router's outer address."""
    import miniupnpc

    router = miniupnpc.UPnP()
    router.discoverdelay = SEARCH_MS
    router.discover()
    router.selectigd()
    return router, str(ipaddress.IPv4Address(router.externalipaddress()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
