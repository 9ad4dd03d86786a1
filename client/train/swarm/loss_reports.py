"""Tells the swarm the losses of the versions that the last stage reaches, and shows them.

The leader of the last stage reports the loss of every step, its other replicas report periodically,
and each tells what it has added up on held-out text (``protocol.seat.evaluating``). A replica of
the last stage shows its own loss of a step. All else that is shown is what most of these replicas
say.
"""

import math
from typing import Final

from client.train.ports import Ports
from client.train.reporting.event_sink import EventSink
from protocol.effects import Publish
from protocol.ids import PeerId
from protocol.membership.losses import (
    HELD_OUT,
    PROGRESS,
    LossSaid,
    agree,
    evaluated,
    is_loss,
    vouched,
)
from protocol.membership.membership import Membership
from protocol.pipeline.effects import Committed
from protocol.seat.effects import HeldOutLoss
from protocol.view import SwarmView, leaders

VOUCH_S: Final = 2.0
"""Period of the reports of a replica that does not lead."""


class LossReports:
    """See the module's docstring; ``EventSink`` holds what is shown."""

    def __init__(self, node: Ports, membership: Membership, event_sink: EventSink) -> None:
        self._node, self._me, self._manifest = node, node.me, node.manifest
        self._membership, self._event_sink = membership, event_sink
        self._said_at = -math.inf

    def closed(self, committed: Committed, view: SwarmView) -> None:
        """Our stage has committed a step; the last stage's replicas tell the swarm the loss."""
        loss = believed(committed, self._event_sink.loss)
        if loss is None:
            return
        now = self._node.now()
        self._progressed(committed.version, loss, vouchers=0)
        leads = leaders(view, committed.stage, committed.version - 1)[:1] == [self._me]
        if leads or now >= self._said_at + VOUCH_S:
            self._said_at = now
            self._say(PROGRESS, committed.version, loss)

    def found(self, found: HeldOutLoss) -> None:
        """Our seat in the last stage has a number on held-out text: tell the swarm."""
        if is_loss(found.loss):  # else the version is ruined, or was sent nonsense
            self._say(HELD_OUT, found.version, found.loss)
            self._evaluated()

    def heard(self, kind: str) -> None:
        if kind == HELD_OUT:
            self._evaluated()
        elif self._me not in (serving := self._versions()):  # else we compute the loss ourselves
            said, shown = self._membership.losses(PROGRESS), self._event_sink.loss
            if (found := vouched(said, [*serving.values()], shown)) is not None:
                self._progressed(found.version, found.loss, found.vouchers)

    def _evaluated(self) -> None:
        terms = self._manifest.evaluation
        if terms is None:
            return
        known, said = self._event_sink.held_out, self._membership.losses(HELD_OUT)
        before = self._event_sink.loss if known is None else known.loss
        before = said[self._me].loss if self._me in said else before
        shown = evaluated(
            said, [*self._versions().values()], terms, self._node.amendments.steps, before
        )
        if shown is not None and (known is None or shown.version >= known.version):
            self._event_sink.evaluated(shown, terms)

    def _versions(self) -> dict[PeerId, int]:
        """Return the version of each replica of the last stage."""
        serving = self._membership.roster.serving(self._manifest.stage_count - 1)
        return {replica.peer: replica.seat.version for replica in serving}

    def _progressed(self, version: int, loss: float, vouchers: int) -> None:
        done = version - 1, loss, version * self._manifest.tokens_per_step
        self._event_sink.progressed(*done, self._node.now(), vouchers)

    def _say(self, kind: str, version: int, loss: float) -> None:
        self._node.perform(Publish(kind, LossSaid(version, loss)))


def believed(committed: Committed, shown: float | None) -> float | None:
    """Return the loss of a step that our stage has committed: the leader's if it agrees with that
    of our own microbatches, else our own; None: nobody whom we believe knows one.

    Args:
        committed: the step; its losses are mean token losses in nats.
        shown: the last loss known, by which we go where none of the step's microbatches was ours.
    """
    told, own = committed.loss, committed.own_loss
    known = shown if own is None else own
    if told is None or known is None:
        # the members that knew the sum are gone, and our part alone is not the step's loss; or it
        # is the first that we are told of, and the leader's word alone
        return None
    if is_loss(told) and agree(told, known):
        return told
    return own if own is not None and is_loss(own) else None
