"""One attempt of a round whose sum alone becomes known: seeds, shares, and what opens the sum.

Each member adds to its contribution an own mask, and for every other member a pair mask, which
that one subtracts; so the sum over all members hides behind their own masks alone. Each deals the
seed of its own mask to all as shares. Nothing here decides when the shares are shown
(``machine.py``).

Source: Bonawitz et al., "Practical Secure Aggregation", 2017. There the sum may lack members, whose
pair masks are then recovered; a round here has all members of its plan or is planned again.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from protocol.ids import PeerId
from protocol.secrecy.shares import SEED_BYTES, deal, recover, share_hash, threshold

PAIR_BYTES = 32
Mask = tuple[bytes, bool]
"""Seed of a mask, and whether it is added; else it is subtracted."""


class SecretAttempt:
    """The secrets of one attempt.

    Args:
        me: our id; we are an observer if it is not among the members.
        members: of the plan, in its order.
        secret: 32 random bytes, used for this attempt only.
    """

    def __init__(self, me: PeerId, members: Sequence[PeerId], secret: bytes) -> None:
        self.members = tuple(members)
        self.needed = threshold(len(members))
        self._places = {peer: place for place, peer in enumerate(members)}
        self._me = self._places.get(me, -1)
        self._hashes: dict[int, tuple[bytes, ...]] = {}
        self._shares: dict[int, bytes] = {}  # our share of each member's seed
        self._pairs: dict[int, bytes] = {}
        self._opened: dict[int, tuple[bytes, ...]] = {}
        self._seed, self._dealt = b"", list[bytes]()
        if self._me >= 0:
            self._draw(secret)

    def _draw(self, secret: bytes) -> None:
        count, me = len(self.members), self._me
        self._seed = _derived(secret, 0, SEED_BYTES)
        self._dealt = deal(self._seed, count)
        self._hashes[me] = tuple(share_hash(share, at) for at, share in enumerate(self._dealt))
        self._shares[me] = self._dealt[me]
        self._pairs = {at: _derived(secret, 1 + at, PAIR_BYTES) for at in range(me + 1, count)}

    # --- dealing ---------------------------------------------------------------------------

    @property
    def hashes(self) -> tuple[bytes, ...]:
        """What we publish of our shares."""
        return self._hashes[self._me]

    def secrets_for(self, peer: PeerId) -> tuple[bytes, bytes]:
        """Return a member's share of our seed, and the seed of the mask that we have with it if it
        comes after us; the other one of a pair draws it."""
        place = self._places[peer]
        return self._dealt[place], (self._pairs[place] if place > self._me else b"")

    def dealt(self, sender: PeerId, hashes: Sequence[bytes], share: bytes, pair: bytes) -> bool:
        """Take what a member deals to us; False if it contradicts itself."""
        place = self._places.get(sender, self._me)
        if place == self._me or place in self._hashes:
            return True
        if len(hashes) != len(self.members):
            return False
        if self._me >= 0:
            draws = place < self._me
            if share_hash(share, self._me) != hashes[self._me]:
                return False
            if len(pair) != (PAIR_BYTES if draws else 0):
                return False
            self._shares[place] = share
            self._pairs |= {place: pair} if draws else {}
        self._hashes[place] = tuple(hashes)
        return True

    def missing(self) -> list[PeerId]:
        """Return the members that have not dealt to us."""
        return [peer for peer, place in self._places.items() if place not in self._hashes]

    def masks(self) -> tuple[Mask, ...]:
        """Return the masks of our contribution: our own first."""
        pairs = ((seed, self._me < place) for place, seed in sorted(self._pairs.items()))
        return (self._seed, True), *pairs

    def fingerprint(self) -> bytes:
        """Return the hash of everything that was published: members must agree on it."""
        said = [part for place in range(len(self.members)) for part in self._hashes[place]]
        return blake2b(b"".join(said), digest_size=32).digest()

    # --- opening ---------------------------------------------------------------------------

    def open(self) -> tuple[bytes, ...]:
        """Return our share of every member's seed, in the members' order."""
        shares = tuple(self._shares[place] for place in range(len(self.members)))
        self._opened[self._me] = shares
        return shares

    def opened(self, sender: PeerId, shares: Sequence[bytes]) -> bool:
        """Take the shares that a member shows; False if they are not those that were dealt."""
        place = self._places.get(sender)
        if place is None or place in self._opened:
            return True
        if len(shares) != len(self.members):
            return False
        published = (self._hashes[dealer][place] for dealer in range(len(self.members)))
        if any(share_hash(s, place) != h for s, h in zip(shares, published, strict=True)):
            return False
        self._opened[place] = tuple(shares)
        return True

    def openers(self) -> set[PeerId]:
        """Return the members that have shown their shares, ourselves included."""
        return {self.members[place] for place in self._opened}

    def seeds(self) -> tuple[bytes, ...] | None:
        """Return the seeds of all own masks, in the members' order; None while shares are missing.

        The seed of a member that dealt falsely is empty, whichever shares are here: the shares that
        it should have dealt follow from its seed, and their hashes are known to all alike.
        """
        if len(self._opened) < self.needed:
            return None
        return tuple(self._seed_of(dealer) for dealer in range(len(self.members)))

    def _seed_of(self, dealer: int) -> bytes:
        shares = {place: shown[dealer] for place, shown in self._opened.items()}
        count = len(self.members)
        seed = recover(shares, count)
        if seed is None:
            return b""
        dealt = (share_hash(share, place) for place, share in enumerate(deal(seed, count)))
        return seed if tuple(dealt) == self._hashes[dealer] else b""


def _derived(secret: bytes, purpose: int, size: int) -> bytes:
    person = b"volunteer masks"
    said = purpose.to_bytes(4, "little")
    return blake2b(said, key=secret, person=person, digest_size=size).digest()
