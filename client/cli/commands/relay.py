"""Relay for members of a swarm that nobody can dial; computes nothing.

Group: the swarm

$ volunteer relay --swarm x.swarm --listen-port 4001  # on a server, until Ctrl-C or SIGTERM
$ volunteer relay --swarm x.swarm --relay 20Mbit/s  # lend less than 90 % of the upload

For somebody with a small server that others can dial. It needs about 150 MB of memory and little
processor, starts no worker and holds no part of the model. What it costs is traffic: every byte
comes in and goes out once; --relay, --upload-limit and --daily-quota bound it. It sees which
members talk to each other, when and how much. It sees nothing of what they say: that is encrypted
from end to end, and a relay that changes it, or takes a member's place, is refused.
"""

import os
from dataclasses import replace
from typing import Annotated

from cyclopts import Parameter
from msgspec import structs

from client.cli.commands.join import SWARM_VARIABLE, serve_here
from client.cli.reach.home import find_home
from client.cli.reach.target import find_target
from client.cli.serving.background import Handover
from client.cli.settings.flags import RelayFlags

SHARE = "90%"
"""Lent unless the owner has set something: this machine does nothing else for the swarm."""


def relay(
    *,
    swarm: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    flags: RelayFlags = RelayFlags(),  # noqa: B008  (frozen)
) -> int:
    """Relay for members of a swarm that nobody can dial, until you stop; computes nothing.

    Args:
        swarm: An invite, a .swarm file, an address, a swarm joined before, or - for stdin.
    """
    home = find_home(vars(flags))
    target = find_target(home, swarm or os.environ.get(SWARM_VARIABLE))
    resolved = home.resolved
    if resolved.origins["relay"] == "default":
        resolved = replace(resolved, settings=structs.replace(home.settings, relay=SHARE))
    return serve_here(Handover(swarm=str(target), resolved=resolved, relay_only=True))
