"""Reports the swarm's progress among its members: the last closed step and its loss.

The leader of the last stage reports every commit, and the other replicas of that stage report
periodically. A replica of the last stage uses its own loss; all other members take the progress
that most of those replicas vouch for.
"""

from __future__ import annotations

import math
from typing import Final, Protocol

from client.train.ports import Ports
from client.train.reporting.event_sink import EventSink
from client.train.swarm.own_advert import Clock
from protocol.effects import Publish
from protocol.ids import PeerId
from protocol.manifest import Manifest
from protocol.membership.membership import Membership
from protocol.membership.progress import (
    PROGRESS,
    Progress,
    agree,
    encode_progress,
    is_loss,
    vouched,
)
from protocol.pipeline.effects import Committed
from protocol.view import SwarmView, leader

VOUCH_S: Final = 2.0
"""Period of the reports of a replica that does not lead."""


class Node(Ports, Clock, Protocol):
    """The part of the engine that a progress report uses."""


class ProgressReport:
    """See the module's docstring; ``EventSink`` holds the known progress."""

    def __init__(
        self,
        node: Node,
        me: PeerId,
        membership: Membership,
        manifest: Manifest,
        event_sink: EventSink,
    ) -> None:
        self._node, self._me, self._event_sink = node, me, event_sink
        self._membership, self._manifest = membership, manifest
        self._seq, self._said_at = 0, -math.inf

    def closed(self, committed: Committed, view: SwarmView) -> None:
        """Our stage has committed a step; the last stage's replicas tell the swarm the loss."""
        loss = believed(committed, self._event_sink.loss)
        if loss is None:
            return
        now = self._node.now()
        progress = progress_at(committed.version, loss, self._manifest, self._node.wall())
        self._event_sink.progressed(progress, now, vouchers=0)
        leads = leader(view, committed.stage, progress.step) == self._me
        if leads or now >= self._said_at + VOUCH_S:
            self._say(progress, now)

    def _say(self, progress: Progress, now: float) -> None:
        self._said_at = now
        self._seq = max(self._seq + 1, int(1000 * self._node.wall()))
        self._node.perform(Publish(PROGRESS, self._me, self._seq, encode_progress(progress)))

    def heard(self) -> None:
        """A progress record has arrived."""
        roster, last = self._membership.roster, self._manifest.stage_count - 1
        serving = roster.serving(last)
        if any(replica.peer == self._me for replica in serving):
            return  # we compute the loss ourselves
        versions = [replica.seat.version for replica in serving]
        found = vouched(self._membership.progress(), versions, self._event_sink.loss)
        if found is not None:
            said, vouchers = found
            progress = progress_at(said.step + 1, said.loss, self._manifest, said.wall)
            self._event_sink.progressed(progress, self._node.now(), vouchers)


def believed(committed: Committed, shown: float | None) -> float | None:
    """Return the loss of a step that our stage has committed: the leader's if it agrees with that
    of our own microbatches, else our own; None: nobody whom we believe knows one.

    Args:
        committed: the step; its losses are mean token losses in nats.
        shown: the last loss known, by which we go where none of the step's microbatches was ours.
    """
    told, own = committed.loss, committed.own_loss
    if told is None:
        return None  # the members that knew the sum are gone; our part alone is not the step's loss
    known = shown if own is None else own
    if is_loss(told) and (known is None or agree(told, known)):
        return told
    return own if own is not None and is_loss(own) else None


def progress_at(version: int, loss: float, manifest: Manifest, wall: float) -> Progress:
    """Return the swarm's progress once its last stage has reached a version.

    Args:
        version: of the last stage; its last step is ``version`` - 1.
        loss: mean token loss of that step, nats.
        manifest: tells the tokens per step.
        wall: Unix seconds.
    """
    per_step = manifest.tokens_per_microbatch * manifest.microbatches_per_step
    return Progress(version - 1, loss, version * per_step, int(wall))
