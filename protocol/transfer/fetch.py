"""Fetches a blob (a stage's state, a tokenizer) in verified chunks from several donors.

All donors are asked for the list of the chunks' digests, and asked again until they give it: one
that still writes its snapshot is silent. The blob's root proves the list, and the list each chunk,
so a donor that sends another one is dropped at once. Those that have given the list are asked for
the chunks (``leaves``). Chunks of an earlier attempt are reused if their digests match.
"""

from collections.abc import Mapping, Sequence

from protocol.effects import Penalise, Send
from protocol.ids import PeerId
from protocol.pace import FORGET_S, LOOK_S
from protocol.transfer.blob import Blob, split
from protocol.transfer.leaves import LeafEffect, LeafFetch
from protocol.wire.messages import Chunk, ChunkRequest

WINDOW = 4
"""Chunks in flight per donor: 8 MiB cover the bandwidth-delay product of 640 Mb/s at 100 ms."""
LIE = "chunk-with-wrong-digest", 50
"""Penalty for a chunk or a list that is not the blob's."""


class Fetch:
    """The download of one blob.

    Args:
        blob: what is wanted.
        donors: peers that may have it.
        window: chunks in flight per donor. One that owes some is silent once nothing has come for
            longer than they take on a slow line: 17 s each at 1 Mbit/s.
    """

    def __init__(self, blob: Blob, donors: Sequence[PeerId], window: int = WINDOW) -> None:
        self._blob = blob
        self._chunks = LeafFetch(blob.root, window, window * FORGET_S, LIE)
        self._unready = dict.fromkeys(donors)
        """Donors that have not given the list."""
        self._listed: list[bytes] | None = None
        """The digests of the chunks, once they are here."""
        self._held: Mapping[int, bytes] = {}
        self._asked_at: float | None = None

    @property
    def listed(self) -> bytes:
        """The digests of the chunks, one behind the other; empty before they are here."""
        return b"".join(self._listed or ())

    @property
    def done(self) -> bool:
        """Whether every chunk has been received and verified."""
        return self._listed is not None and not self._chunks.missing

    @property
    def progress(self) -> tuple[int, int]:
        """Verified chunks, and chunks in all; 0 before their list is here."""
        count = len(self._listed or ())
        return count - self._chunks.missing, count

    @property
    def hopeless(self) -> bool:
        """Whether no donor is left."""
        return not (self._unready or self._chunks.donors)

    def resume(self, held: Mapping[int, bytes]) -> None:
        """Resume from chunks on disk, given as digest by index; call it before ``start``."""
        self._held = held

    def start(self, now: float) -> list[LeafEffect]:
        """Ask every donor for the list that has not given it."""
        self._asked_at, blob = now, self._blob
        question = ChunkRequest(blob.root, None, blob.stage, blob.version)
        return [Send(peer, question) for peer in self._unready]

    def chunk(
        self, sender: PeerId, chunk: Chunk, payload: bytes, digest: bytes, now: float
    ) -> list[LeafEffect]:
        """Take a chunk, or the list of their digests; a donor that sends an empty one does not have
        the blob, or not any more, and is dropped.

        Args:
            sender: the donor.
            chunk: which chunk of which blob it is.
            payload: its bytes.
            digest: their BLAKE2b-256, computed by the caller.
            now: monotonic seconds.
        """
        if self._asked_at is None or chunk.root != self._blob.root:
            return []
        if chunk.index is None:
            return self._take_list(sender, payload, now)
        listed = self._listed or ()
        proven = chunk.index < len(listed) and digest == listed[chunk.index]
        return self._chunks.chunk(sender, chunk, "proven" if proven else "lie", now)

    def lost(self, peer: PeerId, now: float) -> list[LeafEffect]:
        """Drop a lost donor; its chunks in flight are requested elsewhere."""
        self._unready.pop(peer, None)
        return self._chunks.lost(peer, now)

    def tick(self, now: float) -> list[LeafEffect]:
        """Ask again for what did not come, since a donor does not answer while it still writes its
        snapshot."""
        again = self._asked_at is not None and now >= self._asked_at + LOOK_S
        return [*self._chunks.tick(now), *(self.start(now) if again else [])]

    def _take_list(self, sender: PeerId, listed: bytes, now: float) -> list[LeafEffect]:
        if not listed:
            return self.lost(sender, now)
        if sender not in self._unready:
            return []
        if not self._blob.lists(listed):
            return [Penalise(sender, *LIE), *self.lost(sender, now)]
        del self._unready[sender]
        effects = self._chunks.offer({*self._chunks.donors, sender}, now)
        if self._listed is None:
            self._listed = split(listed)
            held = self._held
            missing = [i for i, digest in enumerate(self._listed) if held.get(i) != digest]
            effects += self._chunks.want(missing, (), now)
        return effects
