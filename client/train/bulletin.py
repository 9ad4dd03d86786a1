"""The swarm's progress, as its members tell each other: which step it has closed, with which loss.

The leader of the last stage publishes it when its stage has committed; everybody takes it in.
"""

from __future__ import annotations

from typing import Protocol

from client.train.hub import Hub
from client.train.news import News
from client.train.portrait import Clock
from protocol.effects import Publish
from protocol.ids import PeerId
from protocol.manifest import Manifest
from protocol.membership.membership import Membership
from protocol.membership.progress import PROGRESS, PROGRESS_KEY, Progress, encode_progress
from protocol.pipeline.effects import Committed
from protocol.view import SwarmView, leader


class Node(Hub, Clock, Protocol):
    """What a bulletin needs of the engine."""


class Bulletin:
    """See the module's docstring; what is known of the progress lies in ``News``."""

    def __init__(
        self, node: Node, me: PeerId, membership: Membership, manifest: Manifest, news: News
    ) -> None:
        self._node, self._me, self._news = node, me, news
        self._membership, self._manifest = membership, manifest

    def closed(self, committed: Committed, view: SwarmView) -> None:
        """Our stage has committed a step; the last stage's leader tells the swarm the loss."""
        if committed.loss is None:
            return
        wall = self._node.wall()
        progress = progress_at(committed.version, committed.loss, self._manifest, wall)
        self._news.progressed(progress, self._node.now())
        if leader(view, committed.stage, progress.step) == self._me:
            body = encode_progress(progress)
            self._node.perform(Publish(PROGRESS, PROGRESS_KEY, progress.step, body))

    def heard(self) -> None:
        """A record of the progress has come."""
        if (progress := self._membership.progress()) is not None:
            self._news.progressed(progress, self._node.now())


def progress_at(version: int, loss: float, manifest: Manifest, wall: float) -> Progress:
    """Return the swarm's progress when its last stage has reached a version."""
    per_step = manifest.tokens_per_microbatch * manifest.microbatches_per_step
    return Progress(version - 1, loss, version * per_step, int(wall))
