"""The register of one volunteer: the members of the swarm, and the expelled ones.

A member is expelled by the founder, or by a member that its chain leads through: whoever vouches
can take that back. Everybody below the expelled one is out with it. An expulsion carries the chain
of the expelled member, which shows that its signer may do it, so that it counts wherever it is
told, whether or not its author is still there. It holds for the rest of the run.

State: our chain, the chains of the members that we have met, and the expulsions, all bounded. No
I/O here; the driver keeps ``KeptRegister`` on disk.
"""

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from hmac import compare_digest
from typing import Annotated, Final, NamedTuple

from msgspec import Meta, Struct

from protocol import limits
from protocol.answer import YES, Answer, no
from protocol.errors import LocalProtocolError, RemoteProtocolError
from protocol.ids import PeerId, SwarmId, short
from protocol.vouching.chain import Chain, may_vouch, members_of, vouch
from protocol.vouching.ticket import (
    MAX_TICKETS,
    PROOF_BYTES,
    TICKET_BYTES,
    TICKET_LIFE_S,
    Ticket,
    ticket_proof,
    with_ticket,
)
from protocol.wire.canonical import FORGED_PENALTY, MALFORMED_PENALTY, Canonical, Format
from protocol.wire.envelope import Signer, verify
from protocol.wire.fields import Envelope, PeerText, Reason, UnixSeconds
from protocol.wire.parts import Expulsion

EXPEL: Final = "expel"
MAX_EXPULSIONS: Final = 1024
MAX_MET: Final = 4096
"""The most members whose chains are remembered; the oldest is forgotten first."""

_Links = Annotated[tuple[Envelope, ...], Meta(max_length=limits.MAX_CHAIN)]


class Expelled(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The signed body of an expulsion."""

    member: PeerText
    reason: Reason
    issued: UnixSeconds


class KeptRegister(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The state of one swarm's register, as kept on disk."""

    chain: _Links = ()
    expulsions: Annotated[tuple[Expulsion, ...], Meta(max_length=MAX_EXPULSIONS)] = ()
    tickets: Annotated[tuple[Ticket, ...], Meta(max_length=MAX_TICKETS)] = ()
    redeemed: Annotated[bytes, Meta(max_length=TICKET_BYTES)] = b""
    """The ticket by which we came in."""


class Entry(Struct, frozen=True):
    """An expulsion that counts."""

    above: tuple[PeerId, ...]
    """The founder, those by whom its author was invited, and its author."""
    said: Expelled
    whole: Expulsion

    @property
    def by(self) -> PeerId:
        """Its author."""
        return self.above[-1]


class _Member(NamedTuple):
    """A member that was met: those below the founder on its chain, itself last, and the chain."""

    path: tuple[PeerId, ...] = ()
    chain: Chain = ()


_bodies = Canonical(Expelled, "expulsion")
_chains = Format[Chain](_Links, "admission")


class Register:
    """The register of one volunteer; ``now`` is Unix seconds.

    Args:
        founder: the founder, from the manifest, who vouches first.
        kept: the state from disk; the parts that do not verify are left out.
    """

    def __init__(
        self, signer: Signer, founder: PeerId, swarm: SwarmId, kept: KeptRegister | None = None
    ) -> None:
        kept = KeptRegister() if kept is None else kept
        self._signer, self._swarm = signer, swarm
        self.me, self.founder = signer.peer, founder
        self.tickets, self._redeemed = kept.tickets, kept.redeemed
        self._met: dict[PeerId, _Member] = {}
        self._expelled: dict[tuple[PeerId, PeerId], Entry] = {}
        """The expulsions that count, by author and member."""
        for expulsion in kept.expulsions:
            with suppress(RemoteProtocolError):
                self.take_expulsion(expulsion)
        with suppress(RemoteProtocolError):
            self.take_chain(kept.chain)

    @property
    def chain(self) -> Chain:
        """Ours; empty: the founder's, or nobody has vouched for us."""
        return self._met.get(self.me, _Member()).chain

    @property
    def kept(self) -> KeptRegister:
        """The state that the driver keeps on disk."""
        return KeptRegister(self.chain, self.expulsions, self.tickets, self._redeemed)

    @property
    def expulsions(self) -> tuple[Expulsion, ...]:
        """Every expulsion that counts, for members that may not know of it."""
        return tuple(entry.whole for entry in self._expelled.values())

    @property
    def is_member(self) -> bool:
        """Whether somebody has vouched for us, or we are the founder."""
        return bool(self.path(self.me)) or self.me == self.founder

    @property
    def belongs(self) -> bool:
        """Whether we belong to the swarm ourselves, as far as we know."""
        return self.is_member and bool(self.standing(self.me))

    @property
    def _may_vouch(self) -> bool:
        return self.is_member and may_vouch(self.chain)

    # --- others ------------------------------------------------------------------------------

    def proof(self, peer: PeerId, ticket: bytes | None) -> bytes:
        """Return what we show to a peer in our Hello: our chain, or until we are vouched for the
        proof of our invite's ticket. One that has brought us in already is not shown again: nobody
        but its maker knows it, and who expelled us does."""
        if ticket is None or self.belongs or self.is_used_up(ticket):
            return _chains.encode(self.chain)
        return ticket_proof(ticket, self._swarm, self.me, peer)

    def admit(self, peer: PeerId, shown: bytes, now: float) -> tuple[Answer, Chain]:
        """Decide on a peer by what its Hello shows: its chain, or the 32 bytes that prove our
        ticket.

        Returns:
            Whether it belongs to the swarm; and the chain that we have just made for it, if it
            came with a ticket of ours.

        Raises:
            RemoteProtocolError: what it shows is malformed or forged.
        """
        if len(shown) == PROOF_BYTES:
            return self._redeem(peer, shown, now)
        chain = _chains.parse(shown)
        path = self._path_of(chain)
        if (path or (self.founder,))[-1] != peer:
            raise RemoteProtocolError("vouch-forged", "of another member", FORGED_PENALTY)
        self._meet(peer, path, chain)
        return self._answer(path), ()

    def _redeem(self, peer: PeerId, shown: bytes, now: float) -> tuple[Answer, Chain]:
        proof = partial(ticket_proof, swarm=self._swarm, bearer=peer, maker=self.me)
        fits = (t for t in self.tickets if compare_digest(proof(t.secret), shown))
        if (ticket := next(fits, None)) is None:
            words = "we did not make this invite: it has to be shown to the member that made it"
            return no(words), ()
        if not (answer := ticket.lets_in(peer, now)):
            return answer, ()
        if not self._may_vouch:
            return no("who invited you may not vouch for anybody"), ()
        path, chain = self._met.get(peer, _Member())
        if not path or not self._answer(path):
            path, chain = (*self.path(self.me), peer), ()
        if not (answer := self._answer(path)):
            return answer, ()
        chain = chain or vouch(self._signer, self.chain, peer, int(now), self._swarm)
        self.tickets = with_ticket(self.tickets, ticket.used(peer), now)
        self._meet(peer, path, chain)
        return YES, chain

    def path(self, peer: PeerId) -> tuple[PeerId, ...]:
        """Return the members below the founder that a member's chain leads through, itself last.

        The founder and unknown members have none.
        """
        return self._met.get(peer, _Member()).path

    def describe(self, expulsion: Expulsion) -> str:
        """Say in words who has expelled whom, and why."""
        said = _bodies.parse(expulsion.statement.body)
        words = f"{short(PeerId(expulsion.statement.signer))} has expelled "
        reason = f": {said.reason}" if said.reason else ""
        return words + short(PeerId(said.member)) + reason

    def known(self) -> list[PeerId]:
        """Return the founder, the members met, and those that we know to be expelled."""
        return list(dict.fromkeys((self.founder, *self._met)))

    def why_out(self, peer: PeerId) -> Entry | None:
        """Return the expulsion by which a peer, or somebody that it was invited through, is out."""
        return self._expulsion(self.path(peer))

    def standing(self, peer: PeerId) -> Answer:
        """Whether a peer that was met, or ourselves, still belongs to the swarm, and why not."""
        return self._answer(self.path(peer))

    def may_expel(self, peer: PeerId) -> bool:
        """Whether a member that was met is ours to expel."""
        return self.me in (self.founder, *self.path(peer))[:-1]

    # --- ourselves ---------------------------------------------------------------------------

    def take_chain(self, chain: Sequence[Envelope], ticket: bytes | None = None) -> bool:
        """Take our own chain, and the ticket that we have redeemed for it; return whether it is
        news.

        Raises:
            RemoteProtocolError: it does not hold, or is another's.
        """
        if tuple(chain) == self.chain:
            return False
        path = self._path_of(chain)
        if not path or path[-1] != self.me:
            raise RemoteProtocolError("vouch-forged", "of another member", FORGED_PENALTY)
        if ticket is not None:
            self._redeemed = ticket
        self._meet(self.me, path, tuple(chain))
        return True

    def is_used_up(self, ticket: bytes | None) -> bool:
        """Whether an invite cannot bring us in: there is none, or it has done so before."""
        return ticket is None or ticket == self._redeemed

    def draw_ticket(
        self, secret: bytes, uses: int, now: float, life_s: float = TICKET_LIFE_S
    ) -> Ticket:
        """Return a ticket for a new invite of ours, of 32 random bytes, which lets in so many
        members for so long.

        Raises:
            LocalProtocolError: we may not invite anybody.
        """
        if not (answer := self.standing(self.me)):
            raise LocalProtocolError(answer.reason)
        if not self._may_vouch:
            words = f"there are {limits.MAX_CHAIN} invitations from the founder to you, the most"
            raise LocalProtocolError(words if self.is_member else "nobody has vouched for you yet")
        ticket = Ticket(secret, int(now + life_s), uses)
        self.tickets = with_ticket(self.tickets, ticket, now)
        return ticket

    def lend(self, key: PeerId, now: float) -> Chain:
        """Vouch for a key of our own, for a program that only looks on.

        Raises:
            LocalProtocolError: we are no member, or too far from the founder.
        """
        if not self._may_vouch:
            raise LocalProtocolError("only a member can vouch, and not at the end of a long chain")
        return vouch(self._signer, self.chain, key, int(now), self._swarm)

    # --- expulsions --------------------------------------------------------------------------

    def expel(self, member: PeerId, reason: str, now: float) -> Expulsion:
        """Expel a member that we, or somebody that we invited, vouched for.

        Raises:
            LocalProtocolError: it is not ours to expel; the message says whose it is.
        """
        path, chain = self._met.get(member, _Member())
        if member == self.me:
            raise LocalProtocolError("nobody expels themselves: leave with volunteer finish")
        if member not in self._met:
            raise LocalProtocolError(f"no member {member} has been met here")
        if member == self.founder:
            raise LocalProtocolError("nobody can expel the founder")
        if not self.may_expel(member):
            who = " or ".join(short(peer) for peer in (self.founder, *path[:-1]))
            raise LocalProtocolError(f"only who vouched for {short(member)} can do that: {who}")
        body = _bodies.encode(Expelled(member, reason, int(now)))
        statement = self._signer.sign(EXPEL, body, self._swarm)
        expulsion = Expulsion(statement, list(chain))
        self.take_expulsion(expulsion)
        return expulsion

    def take_expulsion(self, expulsion: Expulsion) -> bool:
        """Take an expulsion; return whether it is news.

        Raises:
            RemoteProtocolError: it does not hold, or its author may not do it.
        """
        envelope = expulsion.statement
        if envelope.kind != EXPEL:
            raise RemoteProtocolError("expulsion-malformed", "another kind", MALFORMED_PENALTY)
        said = _bodies.parse(envelope.body)
        author, member = PeerId(envelope.signer), PeerId(said.member)
        if (author, member) in self._expelled:
            return False
        path = self._path_of(expulsion.chain)
        above = (self.founder, *path[:-1])
        if not path or path[-1] != member or author not in above:
            raise RemoteProtocolError("expulsion-forged", "not theirs to expel", FORGED_PENALTY)
        verify(envelope, self._swarm)
        entry = Entry(above[: above.index(author) + 1], said, expulsion)
        self._expelled[author, member] = entry
        if member not in self._met:
            self._meet(member, path, tuple(expulsion.chain))
        if len(self._expelled) > MAX_EXPULSIONS:
            return self._drop() is not entry
        return True

    def _drop(self) -> Entry:
        """Forget an expulsion of the branch that has the most, of its branches again, and so on; of
        one author the newest. Whom a member invites and expels it may invent, and the times that it
        signs: so it crowds out only its own, and nobody those of members above."""
        entries, depth = list(self._expelled.values()), 0
        while below := [entry for entry in entries if len(entry.above) > depth]:
            (fullest, _), *_ = Counter(entry.above[depth] for entry in below).most_common(1)
            entries = [entry for entry in below if entry.above[depth] == fullest]
            depth += 1
        worst = max(entries, key=lambda entry: entry.said.issued)
        return self._expelled.pop((worst.by, PeerId(worst.said.member)))

    def _answer(self, path: Sequence[PeerId]) -> Answer:
        entry = self._expulsion(path)
        if entry is None:
            return YES
        of = "you were" if entry.said.member == path[-1] else "who invited you was"
        why = f": {entry.said.reason}" if entry.said.reason else ""
        return no(f"{of} expelled by {short(entry.by)}{why}")

    def _expulsion(self, path: Sequence[PeerId]) -> Entry | None:
        """Return the expulsion, by somebody above, of the first member on a path that has one."""
        if not self._expelled:
            return None
        above = [self.founder]
        for member in path:
            for author in above:
                if (entry := self._expelled.get((author, member))) is not None:
                    return entry
            above.append(member)
        return None

    def _path_of(self, chain: Sequence[Envelope]) -> tuple[PeerId, ...]:
        return members_of(chain, self.founder, self._swarm)

    def _meet(self, peer: PeerId, path: tuple[PeerId, ...], chain: Chain) -> None:
        self._met.pop(peer, None)
        self._met[peer] = _Member(path, chain)
        if len(self._met) > MAX_MET:
            del self._met[next(one for one in self._met if one != self.me)]
