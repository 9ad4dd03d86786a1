"""What this home has kept of a swarm's run: who contributed, and the loss on held-out text. It is a
minute old if its volunteer runs."""

from __future__ import annotations

from client.cli.reach.home import Home
from client.control.contributors import contributors_view
from client.control.snapshot import ContributorView
from client.control.updates import StepPoint
from client.store.persisted import Persisted
from client.store.records import KeptContributions
from client.train.reporting.event_sink import bits_per_byte
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


def told_loss(home: Home, swarm: SwarmId, version: int) -> StepPoint | None:
    """Return the loss on held-out text that members told of the newest version up to this one;
    None: none was told here."""
    points = Persisted(home.folders.held_out(swarm), list[StepPoint]).peek() or []
    known = [point for point in points if point.step <= version]
    return max(known, key=lambda point: point.step, default=None)


def held_out_words(manifest: Manifest, told: StepPoint | None) -> str:
    """Say what was told."""
    terms = manifest.evaluation
    if told is None or terms is None:
        return "not known here: a volunteer of the swarm hears it while it trains"
    bits = bits_per_byte(told.loss, terms)
    return (
        f"{told.loss:.4f} nats a token, {bits:.4f} bits per byte of text, at version "
        f"{told.step:,}, as members told it of {terms.tokens:,} tokens"
    )
