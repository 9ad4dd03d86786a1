"""Print the versions that matter in a report.

Group: this machine

To go to a newer one in a checkout: volunteer finish, git pull, make install, volunteer join. The
home and what it has learned stay. Nothing asks the network whether there is one.
"""

from __future__ import annotations

from msgspec.structs import asdict

from client.cli.software import versions
from client.cli.terminal.answer import Answer, answered
from client.train.messaging.handshake import PROTOCOL


@answered
def version() -> Answer:
    """Print the versions that matter in a report; members of a swarm need the same protocol."""
    found = versions()
    lines = (
        f"volunteer {found.volunteer}, protocol {PROTOCOL}",
        f"python {found.python} on {found.platform}",
        *(f"{name} {number}" for name, number in found.packages.items()),
    )
    return Answer({**asdict(found), "protocol": PROTOCOL}, lines)
