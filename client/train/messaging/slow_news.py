"""News of the swarm's progress for peers that have done no work: it waits for our next heartbeat.

Progress is told with every step, to a few of the peers that we are linked with, each time in a
message of its own; beside a crowd of invented members most of these are invented, and what goes to
them is most of what the crowd costs. Heartbeats go to all of them every second anyway, and what is
sent along costs next to nothing. An honest newcomer hears of steps up to a second later.

State: for each such peer, the newest progress by author. It sends nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from protocol.ids import PeerId
from protocol.limits import MAX_RECORDS_PER_MESSAGE
from protocol.membership.losses import PROGRESS
from protocol.wire.fields import Envelope
from protocol.wire.messages import Heartbeat, Message, Records


class SlowNews:
    """See the module's docstring.

    Args:
        is_new: whether a peer has done no work, though work has proven others.
    """

    def __init__(self, is_new: Callable[[PeerId], bool]) -> None:
        self._is_new = is_new
        self._waiting: dict[PeerId, dict[str, Envelope]] = {}

    def keeps(self, peer: PeerId, message: Message) -> bool:
        """Keep a message for later, in place of what it supersedes; False: it is to be sent now."""
        if not isinstance(message, Records) or not self._is_new(peer):
            return False
        if any(record.kind != PROGRESS for record in message.records):
            return False
        waiting = self._waiting.get(peer, {}) | {one.signer: one for one in message.records}
        if len(waiting) > MAX_RECORDS_PER_MESSAGE:
            return False
        self._waiting[peer] = waiting
        return True

    def along(self, peer: PeerId, message: Message) -> Records | None:
        """Return what is sent along with a message, if that is a heartbeat; None: nothing."""
        if not isinstance(message, Heartbeat):
            return None
        waiting = self._waiting.pop(peer, None)
        return None if waiting is None else Records(list(waiting.values()))

    def gone(self, peer: PeerId) -> None:
        """The link to a peer is gone."""
        self._waiting.pop(peer, None)
