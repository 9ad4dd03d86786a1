"""What a round keeps from contributing to applying, where a replica's vectors are offloaded.

That is what was sent and, of the segments that are owned, what encoding took from the sums. Beside
offloaded vectors it would be most of what is left on the device. Its room is reserved when the
stage is opened, so that no round ends for lack of it.

State: the room, which the newest attempt uses.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from client.compute.memory import away_bytes
from client.compute.replica import Replica, host_bytes
from model_zoo.specs.state import NUMBER_BYTES


class Away:
    """The room of one replica."""

    def __init__(self, replica: Replica) -> None:
        codec, size = replica.wire.averaging_codec, replica.size
        lossy = codec != "fp32"
        self._home = replica.home
        self._lost = self._home.zeros(size if lossy else 0)
        sent_bytes = away_bytes(size, codec) - self._lost.nbytes
        self._room = self._home.zeros(sent_bytes // NUMBER_BYTES)
        self._bytes = host_bytes(self._room)

    def keep(self, payload: memoryview, before: Sequence[memoryview]) -> memoryview:
        """Return a copy of a payload in slower memory; itself, if there is no room left.

        ``before`` are those of the same attempt that are kept already.
        """
        start = sum(map(len, before))
        if start + len(payload) > len(self._bytes):
            return payload
        kept = self._bytes[start : start + len(payload)]
        kept[:] = payload
        self._home.rest(self._room)
        return kept

    def keep_lost(self, lost: Tensor, place: slice) -> Tensor:
        """Return a copy of what encoding took from a sum, in slower memory.

        Args:
            lost: (n,).
            place: of the segment in the vectors.
        """
        kept = self._lost[place].copy_(lost)
        self._home.rest(kept, self._room)
        return kept

    def rest(self) -> None:
        """Say that nothing of it is used for now."""
        self._home.rest(self._lost, self._room)
