"""How a node shows an invite."""

from __future__ import annotations

from client.control.snapshot import InviteView
from client.inviting import notes
from protocol.invite import SwarmFile


def described(swarm: SwarmFile) -> InviteView:
    """Return an invite as it is shown, with what a person who shares it should know."""
    return InviteView(
        swarm=swarm.swarm,
        swarm_name=swarm.manifest.name,
        invite=str(swarm.invite),
        file=str(swarm),
        members=[str(address) for address in swarm.peers],
        private=swarm.ticket is not None,
        notes=notes(swarm),
    )
