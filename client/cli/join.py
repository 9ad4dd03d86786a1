"""``volunteer join``: take part in a swarm until it is done or the user stops it.

Starts the node in this process and, unless headless, one task that shows its progress. The node
never imports torch; its worker is a child process. The first SIGINT or SIGTERM begins an orderly
stop (hand off, checkpoint, exit 0), the second ends the process at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import Parameter

from client.cli.flags import Config, SettingFlags, given
from client.cli.home import find_home
from client.cli.target import read_target
from client.config import Settings
from protocol.address import Address
from protocol.ids import PeerId
from protocol.invite import Target


def join(
    *,
    swarm: Annotated[str, Parameter(allow_leading_hyphen=True)],
    headless: bool = False,
    data: Path | None = None,
    exit_when_done: bool = False,
    flags: SettingFlags = SettingFlags(),  # noqa: B008  (frozen)
    config: Config = None,
) -> int:
    """Take part in a swarm's training until it is done or you stop.

    Parameters
    ----------
    swarm
        An invite (volunteer:...), a .swarm file, a member's address, or - to read one from stdin.
    headless
        Show no progress, only messages.
    data
        The swarm's training text, where this machine has it; otherwise it is downloaded.
    exit_when_done
        End when the swarm has done its last step, instead of staying to serve the model.
    """
    home = find_home(given(flags), config)
    target = read_target(swarm)
    settings = promised_port(home.settings, home.signer().peer, bootstrap(target))
    from client.cli.serving import serve

    return serve(home, settings, target, data, exit_when_done=exit_when_done, headless=headless)


def bootstrap(target: Target) -> tuple[Address, ...]:
    """Return the members that a target names."""
    return (target,) if isinstance(target, Address) else target.peers


def promised_port(settings: Settings, own: PeerId, peers: tuple[Address, ...]) -> Settings:
    """Listen where the swarm file says that we do, unless the user chose a port.

    The founder's file names the founder's own address; others will look for it there.
    """
    ports = [address.port for address in peers if address.peer == own]
    if not ports or settings.listen_port:
        return settings
    return msgspec.structs.replace(settings, listen_port=ports[0])
