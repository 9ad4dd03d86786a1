"""Who contributed to a swarm, as this home has kept it: a minute ago if its volunteer runs."""

from __future__ import annotations

from client.cli.reach.home import Home
from client.control.contributors import contributors_view
from client.control.snapshot import ContributorView
from client.store.persisted import Persisted
from client.store.records import KeptContributions
from protocol.contributions.board import Board
from protocol.ids import SwarmId
from protocol.manifest import Manifest


def contributors_of(
    home: Home, swarm: SwarmId, manifest: Manifest, step: int
) -> tuple[list[ContributorView], int]:
    """Return the leaderboard after so many steps, and this volunteer's own count of its
    microbatches in committed steps, over all its sessions."""
    kept = Persisted(home.folders.contributions(swarm), KeptContributions).peek()
    if kept is None:
        return [], 0
    found = Board(kept.board).contributors(lambda _peer: False)
    me = home.signer().peer
    own = sum(one.counts.get(me, 0) for one in kept.stages)
    return contributors_view(found, lambda peer: kept.names.get(peer, ""), manifest, step), own
