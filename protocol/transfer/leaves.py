"""Fetches leaves of what one root proves, the most urgent first, each from any member that has it.

Of token data what is wanted is a list that changes as the run goes on, and a donor may have a part.
The manifest's root proves each leaf by itself, which comes with its path behind it. Of a blob
(``fetch``) all leaves are wanted, its *chunks*, and their list proves them.

A leaf is asked for where it is likely to come first: of a donor with few in flight, whose leaves
have come fast. One that has given nothing, or nothing for a while, is asked last. A leaf that is
waited for is asked for at once; others only as many at a time as arrive soon, at the rate of the
donor's leaves so far. Once all are asked for, those that came to nothing for long are asked of
others, too.

A donor is asked for a leaf by ``ChunkRequest`` and sends a ``Chunk``, which is empty if it does not
have that leaf.
"""

from collections.abc import Collection, Iterable, KeysView, Sequence
from dataclasses import dataclass, field
from typing import Literal

from protocol.effects import Penalise, Send
from protocol.ids import PeerId
from protocol.pace import FORGET_S, HEARD_S, LOOK_S, LOST_S
from protocol.wire.messages import Chunk, ChunkRequest

WINDOW = 16
"""Most leaves of token data in flight per donor: 4 MiB."""
LEAST_AHEAD = 2
"""Leaves in flight per donor however slow it is, so that the line does not rest between two."""
SOON_S = LOOK_S / 2
"""Leaves that nobody waits for yet are in flight while they arrive within this time."""
LATEST_SHARE = 1 / 4
"""Weight of the latest leaf in the mean time between leaves."""
LIE = "leaf-not-proven", 100
"""Penalty for data that are not the swarm's: nobody sends or offers them by mistake."""


@dataclass(frozen=True, slots=True)
class StoreChunk:
    """Write the received leaf at ``index``: it is verified, and counts as written from now on.

    A driver that cannot write it gives up the whole fetch: other donors would not help.
    """

    index: int


Verdict = Literal["proven", "lacks", "lie"]
"""What a chunk's payload is: checked by the caller, for it needs the whole payload."""
LeafEffect = Send | Penalise | StoreChunk


@dataclass(slots=True)
class _Donor:
    asked: dict[int, float] = field(default_factory=dict)
    """Leaf to the time of its request."""
    lacks: dict[int, float] = field(default_factory=dict)
    """Leaf to the time of its answer."""
    heard: float = float("-inf")
    rests_until: float = float("-inf")
    between_s: float = LOST_S
    """Mean time between its leaves while it owes some; ``LOST_S``: it has given none, or none for
    so long."""

    @property
    def ahead(self) -> int:
        """How many leaves may be in flight when another is asked for that nobody waits for."""
        soon = SOON_S / max(self.between_s, SOON_S / WINDOW)
        return max(LEAST_AHEAD, int(soon))

    def arrived(self, asked: float, now: float) -> None:
        """Note a leaf that came, and when it was asked for."""
        took_s = now - max(asked, self.heard)
        share = LATEST_SHARE if self.between_s < LOST_S else 1.0
        self.between_s += share * (took_s - self.between_s)


class LeafFetch:
    """See the module's docstring.

    Args:
        root: proves the leaves.
        window: most of them in flight per donor.
        patience_s: how long a donor that owes some may be silent before it is left alone.
        lie: penalty for a wrong one, with its reason.
    """

    def __init__(
        self,
        root: bytes,
        window: int = WINDOW,
        patience_s: float = LOST_S,
        lie: tuple[str, int] = LIE,
    ) -> None:
        self._root, self._window, self._patience_s, self._lie = root, window, patience_s, lie
        self._donors: dict[PeerId, _Donor] = {}
        self._liars: set[PeerId] = set()
        self._wanted: dict[int, None] = {}
        self._urgent: frozenset[int] = frozenset()
        self._starves_since: float | None = None

    @property
    def donors(self) -> KeysView[PeerId]:
        """Those that offer leaves, and have not lied."""
        return self._donors.keys()

    @property
    def missing(self) -> int:
        """How many of the leaves that are wanted are not here."""
        return len(self._wanted)

    def starved(self, now: float) -> bool:
        """Whether nobody has given what is wanted, or said that it would, for a while: then the
        owner is told."""
        return self._starves_since is not None and now >= self._starves_since + LOST_S

    # --- what happens -----------------------------------------------------------------------

    def offer(self, donors: Collection[PeerId], now: float) -> list[LeafEffect]:
        """Set the members that offer leaves."""
        offering = set(donors) - self._liars
        self._donors = {peer: d for peer, d in self._donors.items() if peer in offering}
        for peer in offering:
            self._donors.setdefault(peer, _Donor())
        return self._ask(now)

    def want(self, awaited: Sequence[int], ahead: Sequence[int], now: float) -> list[LeafEffect]:
        """Set the leaves that are wanted and not here.

        Args:
            awaited: those that tasks wait for.
            ahead: those that will be needed, the most urgent first.
            now: monotonic seconds.
        """
        self._urgent = frozenset(awaited)
        self._wanted = dict.fromkeys((*awaited, *ahead))
        for donor in self._donors.values():
            donor.lacks = {leaf: at for leaf, at in donor.lacks.items() if leaf in self._wanted}
        return self._ask(now)

    def chunk(self, sender: PeerId, chunk: Chunk, verdict: Verdict, now: float) -> list[LeafEffect]:
        """Take a leaf; one that comes late counts, too.

        Args:
            sender: the donor.
            chunk: names the leaf.
            verdict: what its payload is.
            now: monotonic seconds.
        """
        donor, index = self._donors.get(sender), chunk.index
        asked = None if donor is None or index is None else donor.asked.pop(index, None)
        if donor is None or index is None or (asked is None and verdict != "proven"):
            return []
        if asked is not None and verdict == "proven":
            donor.arrived(asked, now)
        donor.heard = now
        if verdict == "lie":
            del self._donors[sender]
            self._liars.add(sender)
            return [Penalise(sender, *self._lie), *self._ask(now)]
        if verdict == "lacks":
            donor.lacks[index] = now
            return self._ask(now)
        wanted = index in self._wanted
        self._wanted.pop(index, None)
        for other in self._donors.values():
            other.asked.pop(index, None)
        return [*([StoreChunk(index)] if wanted else []), *self._ask(now)]

    def refused(self, sender: PeerId, now: float) -> list[LeafEffect]:
        """A donor gives nothing for now."""
        self._rest(sender, now + HEARD_S)
        return self._ask(now)

    def lost(self, peer: PeerId, now: float) -> list[LeafEffect]:
        """A donor is gone."""
        self._donors.pop(peer, None)
        return self._ask(now)

    def tick(self, now: float) -> list[LeafEffect]:
        """Leave silent donors alone, and ask others; a donor may have by now what it lacked."""
        for peer, donor in self._donors.items():
            oldest = min(donor.asked.values(), default=now)
            if now - max(oldest, donor.heard) >= self._patience_s:
                donor.between_s = LOST_S
                self._rest(peer, now + FORGET_S)
            donor.lacks = {leaf: at for leaf, at in donor.lacks.items() if now < at + FORGET_S}
        return self._ask(now)

    # --- inside -----------------------------------------------------------------------------

    def _rest(self, peer: PeerId, until: float) -> None:
        if (donor := self._donors.get(peer)) is not None:
            donor.asked.clear()
            donor.rests_until = until

    def _ask(self, now: float) -> list[LeafEffect]:
        ready = [entry for entry in self._donors.items() if entry[1].rests_until <= now]
        asked = dict[int, float]()
        for _, donor in ready:
            asked |= {leaf: max(at, asked.get(leaf, at)) for leaf, at in donor.asked.items()}
        due: Iterable[int] = (leaf for leaf in self._wanted if leaf not in asked)
        if self._wanted.keys() <= asked.keys():
            due = [leaf for leaf in self._wanted if now >= asked[leaf] + FORGET_S]
        effects: list[LeafEffect] = []
        for leaf in due:
            urgent = leaf in self._urgent
            free = [
                (p, d) for p, d in ready if len(d.asked) < (self._window if urgent else d.ahead)
            ]
            if not free:
                break
            if (peer := _soonest(free, leaf)) is not None:
                self._donors[peer].asked[leaf] = now
                effects.append(Send(peer, ChunkRequest(self._root, leaf)))
        in_flight = any(donor.asked for donor in self._donors.values())
        if in_flight or not self._wanted:
            self._starves_since = None
        elif self._starves_since is None:
            self._starves_since = now
        return effects


def _soonest(free: Sequence[tuple[PeerId, _Donor]], leaf: int) -> PeerId | None:
    """Return from whom a leaf is likely to come first; equal ones take turns."""
    turns = [
        ((1 + len(donor.asked)) * donor.between_s, (leaf + turn) % len(free), peer)
        for turn, (peer, donor) in enumerate(free)
        if leaf not in donor.lacks and leaf not in donor.asked
    ]
    return min(turns)[2] if turns else None
