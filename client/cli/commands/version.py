"""Print the versions that matter in a report.

Group: this machine

To go to a newer one in a checkout: volunteer finish, git pull, make install, volunteer join. The
home and what it has learned stay. Nothing asks the network whether there is one.
"""

from __future__ import annotations

import platform

from msgspec import Struct

from client.cli.software import PACKAGES, package_version, software_version
from client.cli.terminal.answer import Answer, answered
from client.train.messaging.handshake import PROTOCOL


class Versions(Struct, frozen=True):
    """Answer of ``volunteer version --json``."""

    volunteer: str
    python: str
    platform: str
    packages: dict[str, str]
    protocol: int
    """Members of a swarm need the same one."""


@answered
def version() -> Answer:
    """Print the versions that matter in a report."""
    found = {name: package_version(name) or "missing" for name in PACKAGES}
    versions = Versions(
        software_version(), platform.python_version(), platform.platform(), found, PROTOCOL
    )
    lines = (
        f"volunteer {versions.volunteer}, protocol {versions.protocol}",
        f"python {versions.python} on {versions.platform}",
        *(f"{name} {number}" for name, number in found.items()),
    )
    return Answer(versions, lines)
