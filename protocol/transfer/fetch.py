"""Fetches a blob (a stage's state, a tokenizer) in verified chunks from several donors.

All donors are asked for the list of the chunks' digests, and asked again until they give it: one
that still writes its snapshot is silent. The blob's root proves the list, and the list each chunk,
so a donor that sends another one is dropped at once. Chunks are striped over those that have given
the list, with a few requests in flight for each, so a faster donor serves more. Verified chunks
are kept: when a donor goes, only its chunks in flight are requested again. In the end others are
asked, too, for those that a donor was asked for long ago.
Chunks of an earlier attempt are reused if their digests match.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from protocol.effects import Penalise, Send
from protocol.ids import PeerId
from protocol.pace import FORGET_S, LOOK_S
from protocol.transfer.blob import Blob, split
from protocol.wire.messages import Chunk, ChunkRequest

WINDOW = 4
"""Chunks in flight per donor: 8 MiB cover the bandwidth-delay product of 640 Mb/s at 100 ms."""
LIE = "chunk-with-wrong-digest", 50
"""Penalty for a chunk or a list that is not the blob's."""


@dataclass(frozen=True, slots=True)
class StoreChunk:
    """Write the received chunk at ``index``: it is verified, and counts as written from now on.

    A driver that cannot write it gives up the whole fetch: other donors would not help.
    """

    index: int


@dataclass(slots=True)
class _Donor:
    ready: bool = False
    """Whether it has given the list."""
    outstanding: dict[int, float] = field(default_factory=dict)
    """Chunk to the time of its request."""
    heard: float = float("-inf")
    """When its last chunk came; a slow donor is not a silent one."""


FetchEffect = Send | Penalise | StoreChunk


class Fetch:
    """The download of one blob.

    Args:
        blob: what is wanted.
        donors: peers that may have it.
        window: chunks in flight per donor.
    """

    def __init__(self, blob: Blob, donors: list[PeerId], window: int = WINDOW) -> None:
        self._blob, self._window = blob, window
        self._donors = {donor: _Donor() for donor in donors}
        self._listed: list[bytes] | None = None
        """The digests of the chunks, once they are here."""
        self._missing: list[int] = []
        self._have = 0
        self._held: Mapping[int, bytes] = {}
        self._asked_at: float | None = None

    @property
    def listed(self) -> bytes:
        """The digests of the chunks, one behind the other; empty before they are here."""
        return b"".join(self._listed or ())

    @property
    def done(self) -> bool:
        """Whether every chunk has been received and verified."""
        return self._listed is not None and self._have == len(self._listed)

    @property
    def progress(self) -> tuple[int, int]:
        """Verified chunks, and chunks in all; 0 before their list is here."""
        return self._have, len(self._listed or ())

    @property
    def hopeless(self) -> bool:
        """Whether no donor is left."""
        return not self._donors

    def resume(self, held: Mapping[int, bytes]) -> None:
        """Resume from chunks on disk, given as digest by index; call it before ``start``."""
        self._held = held

    def start(self, now: float) -> list[FetchEffect]:
        """Ask every donor for the list that has not given it."""
        self._asked_at = now
        waiting = [peer for peer, donor in self._donors.items() if not donor.ready]
        return [self._request(peer, None) for peer in waiting]

    def chunk(
        self, sender: PeerId, chunk: Chunk, payload: bytes, digest: bytes, now: float
    ) -> list[FetchEffect]:
        """Take a chunk, or the list of their digests; a donor that sends an empty one does not have
        the blob, or not any more, and is dropped.

        Args:
            sender: the donor.
            chunk: which chunk of which blob it is.
            payload: its bytes.
            digest: their BLAKE2b-256, computed by the caller.
            now: monotonic seconds.
        """
        donor, index = self._donors.get(sender), chunk.index
        if donor is None or self._asked_at is None or chunk.root != self._blob.root:
            return []
        if index is None:
            return self._take_list(sender, donor, payload, now)
        if self._listed is None or index not in donor.outstanding:
            return []
        if digest != self._listed[index]:
            return [Penalise(sender, *LIE), *self.lost(sender, now)]
        for other in self._donors.values():
            other.outstanding.pop(index, None)
        donor.heard = now
        self._have += 1
        return [StoreChunk(index), *self._ask(now)]

    def lost(self, peer: PeerId, now: float) -> list[FetchEffect]:
        """Drop a lost donor; its chunks in flight are requested elsewhere."""
        donor = self._donors.pop(peer, None)
        if donor is not None:
            elsewhere = {index for other in self._donors.values() for index in other.outstanding}
            lost = [index for index in donor.outstanding if index not in elsewhere]
            self._missing = sorted((*self._missing, *lost), reverse=True)
        return self._ask(now)

    def tick(self, now: float) -> list[FetchEffect]:
        """Ask again for the list, since a donor does not answer while it still writes its snapshot.
        Drop donors that are silent for longer than their chunks in flight take on a slow line: 17 s
        each at 1 Mbit/s."""
        effects: list[FetchEffect] = []
        for peer, donor in list(self._donors.items()):
            oldest = min(donor.outstanding.values(), default=now)
            if now - max(oldest, donor.heard) >= self._window * FORGET_S:
                effects += self.lost(peer, now)
        effects += self._ask(now)
        if self._asked_at is not None and now >= self._asked_at + LOOK_S:
            effects += self.start(now)
        return effects

    def _take_list(
        self, sender: PeerId, donor: _Donor, listed: bytes, now: float
    ) -> list[FetchEffect]:
        if not listed:
            return self.lost(sender, now)
        if donor.ready:
            return []
        if not self._blob.lists(listed):
            return [Penalise(sender, *LIE), *self.lost(sender, now)]
        donor.ready = True
        if self._listed is None:
            self._listed = split(listed)
            missing = [i for i, digest in enumerate(self._listed) if self._held.get(i) != digest]
            self._have = len(self._listed) - len(missing)
            self._missing = missing[::-1]
        return self._ask(now)

    def _ask(self, now: float) -> list[FetchEffect]:
        effects: list[FetchEffect] = []
        while self._missing and (peer := self._least_busy(self._missing[-1])):
            effects.append(self._request(peer, self._missing.pop(), now))
        if not self._missing:
            for index in self._late(now):
                if peer := self._least_busy(index):
                    effects.append(self._request(peer, index, now))
        return effects

    def _request(self, peer: PeerId, index: int | None, now: float = 0.0) -> Send:
        if index is not None:
            self._donors[peer].outstanding[index] = now
        blob = self._blob
        return Send(peer, ChunkRequest(blob.root, index, blob.stage, blob.version))

    def _least_busy(self, index: int) -> PeerId | None:
        """Return who is asked for a chunk; None: all that were not have enough in flight."""
        free = [
            (len(donor.outstanding), peer)
            for peer, donor in self._donors.items()
            if donor.ready
            and len(donor.outstanding) < self._window
            and index not in donor.outstanding
        ]
        return min(free)[1] if free else None

    def _late(self, now: float) -> list[int]:
        """Return the chunks that were asked for long ago and of nobody since: a liar that drips
        must not decide how long the last ones take."""
        asked = dict[int, float]()
        for donor in self._donors.values():
            for index, at in donor.outstanding.items():
                asked[index] = max(at, asked.get(index, at))
        return sorted(index for index, at in asked.items() if now >= at + FORGET_S)
