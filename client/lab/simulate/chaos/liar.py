"""The liar: one more member of a stage, which works, but sends any message that the protocol
permits.

Its seat, its worker and its disk are those of an honest volunteer. Its messages are distorted on
the way out: each value may become any other that a receiver has to accept. It lies in *moods*, each
of a few kinds of lie and for some seconds, because a permanent lie has other effects than a single
one. Equal seeds tell equal lies.

    records     its stored record, and those of members that it invents: lineages, eras, checkpoints
    missing     heartbeats: the peers that its step needs
    eras        heartbeats: the lineage of its seat
    versions    heartbeats: the version of its seat, and the round that made it
    seats       heartbeats: the stage it holds, whether it serves, whether it holds one at all
    loads       heartbeats: queue, rate, moved microbatches, whether it leaves
    decrees     not in moods: where it leads it proposes another thing to each elector: digest,
                members that are Ready, next electors; or nothing
    gradients   not in moods: every contribution is another one than its microbatches make
    sums        not in moods: every sum of its segments is another one than the contributions make
    audits      not in moods: every audit of its own finds a lie
    restarts    its stored record: a new lineage from states that there are, with true electors, all
                of them, just a majority or itself; in such a lineage its seat says nothing
"""

import hashlib
import random
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, Literal, get_args

from msgspec.structs import replace

from client.lab.simulate.chaos.config import STEPS
from protocol import limits
from protocol.ids import PeerId, peer_id_from_key
from protocol.recovery.stored import (
    MAX_COPIES,
    NONCE_BYTES,
    Copy,
    Lineage,
    Stored,
    begun,
)
from protocol.wire.fields import ERA_BITS, MAX_NUMBER
from protocol.wire.parts import Decree, SeatStatus

LAST_ERA = ((MAX_NUMBER + 1) << ERA_BITS) - 1

Lie = Literal[
    "records",
    "missing",
    "eras",
    "versions",
    "seats",
    "loads",
    "decrees",
    "gradients",
    "sums",
    "audits",
    "restarts",
]
BEATS: Final[tuple[Lie, ...]] = ("missing", "eras", "versions", "seats", "loads")
MENU: Final[tuple[Lie, ...]] = ("records", "missing", "eras", "seats", "loads")
"""The default lies, from which honest members are safe in every seed tried. ``versions`` has runs
of its own: in seed 45 it keeps three members in a lineage that the others have left, so that these
three never finish the run. So have ``restarts``, ``decrees``, and lies that only audits find."""
MOOD_S: Final = (2.0, 20.0)
HOW_OFTEN: Final = (0.0, 0.1, 0.5, 1.0)
INVENTED: Final = 40
"""Invented members."""
AHEAD_MS: Final = 3_600_000
"""Sequence numbers rise faster than those of any honest author."""


class Liar:
    """See the module's docstring.

    Args:
        menu: the kinds of lies that it tells at all.
    """

    def __init__(self, seed: int, stages: int, menu: Sequence[str]) -> None:
        self._draw = random.Random(f"liar {seed}")
        self._stages, self._menu = stages, [lie for lie in get_args(Lie) if lie in menu]
        self.stage = self._draw.randrange(stages)
        self._until, self._rate, self._mood = 0.0, 0.0, frozenset[Lie]()
        self.told: Counter[str] = Counter()
        """Lies, by kind."""
        self._seq = AHEAD_MS
        self.begun = set[int]()
        """Eras of the lineages that it has begun: in these it says nothing more as a member."""
        self._invented = [
            peer_id_from_key(hashlib.blake2b(f"{seed}/{n}".encode(), digest_size=32).digest())
            for n in range(INVENTED)
        ]

    def lies(self, kind: Lie, now: float) -> bool:
        """Whether it lies this time."""
        if now >= self._until:
            self._until = now + self._draw.uniform(*MOOD_S)
            self._mood = frozenset(k for k in self._menu if self._draw.random() < 0.7)
            self._rate = self._draw.choice(HOW_OFTEN)
        lies = kind in self._mood and self._draw.random() < self._rate
        lies |= kind == "decrees" and kind in self._menu
        self.told[kind] += lies
        return lies

    # --- values ----------------------------------------------------------------------------

    def _version(self, true: int) -> int:
        near = true + self._draw.choice((-5, -2, -1, 1, 2, 5, 50))
        any_other = (0, near, near, near, self._draw.randrange(STEPS), STEPS, limits.MAX_STEP)
        return min(max(0, self._draw.choice(any_other)), limits.MAX_STEP)

    def _era(self, true: int) -> int:
        number = max(0, (true >> ERA_BITS) + self._draw.choice((-1, 0, 1, 1, 2, 100)))
        low = self._draw.choice((0, self._draw.randrange(1 << ERA_BITS), (1 << ERA_BITS) - 1))
        return self._draw.choice((true, min((number << ERA_BITS) | low, LAST_ERA), 0, LAST_ERA))

    def _hash(self) -> bytes:
        return self._draw.randbytes(32)

    def _peers(self, everybody: Sequence[PeerId], most: int) -> tuple[PeerId, ...]:
        some = self._draw.sample(everybody, self._draw.randrange(min(most, len(everybody)) + 1))
        return tuple(some)

    # --- records ---------------------------------------------------------------------------

    def records(
        self, me: PeerId, known: dict[PeerId, tuple[int, Stored]]
    ) -> dict[PeerId, tuple[int, Stored]]:
        """Return its records of all disks: its own is false, and so are those of its invented
        members, which agree with it."""
        lineage = self._lineage(known)
        authors = [me, *self._draw.sample(self._invented, self._draw.choice((0, 1, INVENTED)))]
        said = dict(known)
        for author in authors:
            self._seq += 1
            said[author] = (self._seq, Stored(lineage, self._copies(known, lineage)))
        return said

    def restart(
        self, me: PeerId, known: dict[PeerId, tuple[int, Stored]]
    ) -> dict[PeerId, tuple[int, Stored]]:
        """Return its records of all disks: its own begins another lineage after the latest one,
        from the newest version that disks have of every stage."""
        found = {copy for _, stored in known.values() for copy in stored.copies}
        whole = Counter(version for version, _ in {(copy.version, copy.stage) for copy in found})
        version = max((v for v, stages in whole.items() if stages == self._stages), default=0)
        hashes = {copy.stage: copy.hash for copy in found if version and copy.version == version}
        number = 1 + max((stored.lineage.number for _, stored in known.values()), default=0)
        said = tuple(hashes[stage] for stage in sorted(hashes)), self._electors(me, known)
        lineage = begun(number, version, *said, self._draw.randbytes(NONCE_BYTES))
        self.begun.add(lineage.era)
        self._seq += 1
        copies = tuple(sorted(copy for copy in found if copy.version == version)[:MAX_COPIES])
        return {**known, me: (self._seq, Stored(lineage, copies))}

    def _electors(self, me: PeerId, known: Collection[PeerId]) -> tuple[PeerId, ...]:
        """Return the electors of a lineage of its own: all true ones, just a majority, or itself
        alone, so that its next record says that most have left."""
        true, draw = sorted({me, *known})[: limits.MAX_ELECTORS], self._draw.random()
        if draw < 0.5:
            return tuple(true)
        if draw < 0.75:
            return (me,)
        few = sorted({*known} - {me})[: limits.MAX_ELECTORS // 2]
        return tuple(sorted([me, *few, *self._invented[: len(few)]]))

    def _lineage(self, known: dict[PeerId, tuple[int, Stored]]) -> Lineage:
        true = self._true(known).lineage
        era, version = self._era(true.era), self._version(true.version)
        hashes = tuple(self._hash() for _ in range(self._stages * (version > 0)))
        peers = sorted({*known, *self._invented})
        electors = self._peers(peers, limits.MAX_ELECTORS) or peers[:1]
        if not era:
            return Lineage(era, version, hashes)
        said = tuple(sorted(electors)), self._draw.randbytes(NONCE_BYTES)
        return begun(era >> ERA_BITS, version, hashes, *said)

    def _copies(
        self, known: dict[PeerId, tuple[int, Stored]], lineage: Lineage
    ) -> tuple[Copy, ...]:
        true = self._true(known)
        newest = max((copy.version for copy in true.copies), default=0)
        made = {c for c in true.copies if self._draw.random() < 0.5}
        version = self._draw.choice((lineage.version, self._version(newest)))
        for stage in range(self._stages):
            forged = lineage.hashes[stage] if version == lineage.version and version else b""
            made.add(Copy(stage, version, forged or self._hash()))
        return tuple(sorted(made)[:MAX_COPIES])

    def _true(self, known: dict[PeerId, tuple[int, Stored]]) -> Stored:
        """Return the true record of a volunteer."""
        said = [stored for _, stored in known.values()]
        return self._draw.choice(said) if said else Stored()

    # --- decrees ---------------------------------------------------------------------------

    def decree(
        self, me: PeerId, true: Decree, ready: Callable[[Decree], bytes], known: Sequence[PeerId]
    ) -> Decree | None:
        """Return what it proposes to an elector, with the signatures of those that are Ready for
        what is true, or with its own ones for what is not; None: it proposes nothing.

        Args:
            me: the liar.
            true: what its members are Ready for.
            ready: signs its Ready for a decree.
            known: the members of the swarm.
        """
        some = tuple(map(str, self._peers(known, limits.MAX_ELECTORS)))
        fewer = tuple(peer for peer in true.members if peer == me or self._draw.random() < 0.5)
        changes: tuple[dict[str, Any], ...] = (
            {"digest": self._hash()},
            {"electors": (me,)},
            {"electors": some},
            {"members": fewer},
            {"members": (me,)},
            {"members": (me,), "electors": (me,)},
            {"attempt": true.attempt + 1},
        )
        if self._draw.random() < 0.2:
            return None
        false = replace(true, **self._draw.choice(changes))
        if self._draw.random() < 0.3:
            return false
        return replace(false, ready=(ready(false),) * len(false.members))

    # --- heartbeats ------------------------------------------------------------------------

    def beat(
        self, kind: Lie, status: SeatStatus | None, everybody: Sequence[PeerId]
    ) -> SeatStatus | None:
        """Return the seat of its heartbeat."""
        draw, true = self._draw, status
        if status is None or true is None:
            return None
        match kind:
            case "missing":
                status = replace(status, missing=self._peers(everybody, limits.MAX_MISSING))
            case "eras":
                status = replace(status, era=self._era(true.era))
            case "versions":
                status = replace(status, version=self._version(true.version))
            case "seats":
                state = draw.choice(("fetching", "serving"))
                status = replace(status, stage=draw.randrange(self._stages), state=state)
                return draw.choice((None, status))
            case _:
                rate, queue = draw.choice((0.0, 1e-30, 1.0, 1e30)), draw.randrange(1 << 16)
                status = replace(status, rate=rate, queue=queue, leaving=draw.random() < 0.3)
                status = replace(status, moved=draw.randrange(1 << 16))
        return status
