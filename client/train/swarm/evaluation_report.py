"""Reports versions' losses on held-out text among the members, and believes what most say.

Replicas of the last stage tell what they have added up (``protocol.seat.evaluating``). Everybody
shows the median of all numbers that were told of the newest version.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from client.train.ports import Ports
from client.train.reporting.event_sink import EventSink
from client.train.swarm.own_advert import Clock
from protocol.effects import Publish
from protocol.ids import PeerId
from protocol.manifest import Manifest
from protocol.membership.held_out import HELD_OUT, HeldOutSaid, believed, encode_held_out
from protocol.membership.membership import Membership
from protocol.membership.progress import is_loss
from protocol.seat.effects import HeldOutLoss


class Node(Ports, Clock, Protocol):
    """The part of the engine that an evaluation report uses."""


class EvaluationReport:
    """See the module's docstring; ``EventSink`` holds the known numbers."""

    def __init__(
        self,
        node: Node,
        me: PeerId,
        membership: Membership,
        manifest: Manifest,
        event_sink: EventSink,
        steps: Callable[[], int],
    ) -> None:
        self._node, self._me, self._event_sink = node, me, event_sink
        self._membership, self._manifest, self._seq = membership, manifest, 0
        self._steps = steps

    def found(self, found: HeldOutLoss) -> None:
        """Our seat in the last stage has a number: tell the swarm."""
        if not is_loss(found.loss):
            return  # the version is ruined, or was sent nonsense: others say what they found
        wall = self._node.wall()
        self._seq = max(self._seq + 1, int(1000 * wall))
        body = encode_held_out(HeldOutSaid(found.version, found.loss, int(wall)))
        self._node.perform(Publish(HELD_OUT, self._me, self._seq, body))
        self.heard()

    def heard(self) -> None:
        """A record has arrived."""
        terms, last = self._manifest.evaluation, self._manifest.stage_count - 1
        if terms is None:
            return
        versions = [replica.seat.version for replica in self._membership.roster.serving(last)]
        known, said = self._event_sink.held_out, self._membership.held_out()
        own = said.get(self._me)
        before = known.loss if known is not None else self._event_sink.loss
        shown = believed(
            said, versions, terms, self._steps(), own.loss if own is not None else before
        )
        if shown is not None and (known is None or shown.version >= known.version):
            self._event_sink.evaluated(shown, terms)
