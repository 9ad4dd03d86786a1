"""Who contributed to a swarm, told by the running volunteer or as it was when it ran last."""

from __future__ import annotations

from contextlib import suppress

from client.cli.reach.home import Home
from client.control.client import ControlClient, ControlError, running_nodes
from client.control.contributors import contributors_view
from client.control.snapshot import ContributorView
from client.store.persisted import Persisted
from client.store.records import KeptContributions
from protocol.contributions.board import Board
from protocol.invite import SwarmFile


def contributors_of(home: Home, swarm: SwarmFile, step: int) -> list[ContributorView]:
    """Return the leaderboard of a swarm; after so many steps where no volunteer runs."""
    for path, node in running_nodes(home.folders.runtime):
        if node.swarm == swarm.swarm:
            with suppress(ControlError), ControlClient(path) as client:  # it may end meanwhile
                return client.status().contributors
    file = Persisted(home.folders.contributions(swarm.swarm), KeptContributions)
    kept = file.peek() or KeptContributions()
    found = Board(kept.board).contributors(lambda _peer: False)
    return contributors_view(found, lambda peer: kept.names.get(peer, ""), swarm.manifest, step)


def own_work(home: Home, swarm: SwarmFile) -> tuple[int, int]:
    """Return this volunteer's microbatches and tokens in committed steps of a swarm, over all its
    sessions, by its own count."""
    for path, node in running_nodes(home.folders.runtime):
        if node.swarm == swarm.swarm:
            with suppress(ControlError), ControlClient(path) as client:  # it may end meanwhile
                now = client.status().credit
                return now.microbatches, now.tokens
    kept = Persisted(home.folders.contributions(swarm.swarm), KeptContributions).peek()
    stages = () if kept is None else kept.stages
    me = home.signer().peer
    own = sum(one.counts.get(me, 0) for one in stages)
    return own, own * swarm.manifest.tokens_per_microbatch
