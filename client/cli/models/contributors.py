"""Who contributed to a swarm, as this home has counted it: a minute ago if its volunteer runs."""

from __future__ import annotations

from client.cli.reach.home import Home
from client.control.contributors import contributors_view
from client.control.snapshot import ContributorView
from client.store.persisted import Persisted
from client.store.records import KeptContributions
from protocol.ids import SwarmId
from protocol.manifest import Manifest


def contributors_of(
    home: Home, swarm: SwarmId, manifest: Manifest
) -> tuple[list[ContributorView], int]:
    """Return the leaderboard, and this volunteer's own microbatches in committed steps, over all
    its sessions."""
    kept = Persisted(home.folders.contributions(swarm), KeptContributions).peek()
    if kept is None:
        return [], 0
    found = contributors_view(kept.counts, lambda peer: kept.names.get(peer, ""), manifest)
    return found, kept.counts.get(home.signer().peer, 0)
