"""Admission to a swarm whose members vouch for those they invite."""

from collections.abc import Callable, Iterable, Sequence

from client.train.ports import Ports
from protocol.answer import Answer, no
from protocol.effects import Explain
from protocol.ids import PeerId, short
from protocol.vouching.register import KeptRegister, Register
from protocol.vouching.ticket import TICKET_LIFE_S, Ticket
from protocol.wire.fields import Envelope
from protocol.wire.messages import Statements
from protocol.wire.parts import Expulsion


class Vouching:
    """A peer that a member has vouched for may join, until the voucher is revoked.

    The manifest is no secret: the holder of an invite may read it before deciding.

    Args:
        ticket: of our own invite, until it is redeemed.
        cut: ends the link of an expelled member, with the reason.
        out: called with the reason when the swarm refuses or expels us.
    """

    def __init__(
        self,
        register: Register,
        ticket: bytes | None,
        ports: Ports,
        keep: Callable[[KeptRegister], object],
        greet: Callable[[], None],
        cut: Callable[[PeerId, str], None],
        out: Callable[[str], None],
    ) -> None:
        self.register = register
        self._ticket, self._ports = ticket, ports
        self._keep, self._greet, self._cut, self._out = keep, greet, cut, out

    def proof(self, peer: PeerId) -> bytes:
        """Return the credential of our Hello to a peer: our chain, or the ticket of our invite."""
        return self.register.proof(peer, self._ticket)

    def check(self, peer: PeerId, shown: bytes) -> Answer:
        """Admit members by the credential of their Hello, and vouch for a peer with a ticket of
        ours. Raises RemoteProtocolError: it is malformed or forged."""
        if not shown:
            return no("this swarm is entered by invitation: ask a member for an invite")
        answer, chain = self.register.admit(peer, shown, self._ports.wall())
        if chain:
            self._save()
            self._ports.send(peer, Statements("vouches", chain))
            words = f"{short(peer)} has redeemed our invite"
            self._ports.perform(Explain("membership", words, members=(peer,)))
        if not answer and (entry := self.register.why_out(peer)) is not None:
            self._tell(peer, [entry.whole])  # it can verify the reason itself
        return answer

    def link_up(self, peer: PeerId) -> None:
        self._tell(peer, self.register.expulsions)

    def vouched(self, chain: Sequence[Envelope]) -> None:
        """A member has vouched for us: send the chain to all peers. Raises RemoteProtocolError: the
        chain is invalid, or another peer's."""
        if self.register.take_chain(chain, self._ticket):
            self._save()
            self._greet()

    def expelled(self, sender: PeerId, expulsion: Expulsion) -> None:
        """Handle an expulsion that a member tells us of; a new one is passed on to all others.
        Raises RemoteProtocolError: it is invalid."""
        if self.register.take_expulsion(expulsion):
            self._spread(expulsion, sender)

    def expel(self, member: PeerId, reason: str) -> None:
        """Expel a member, with all members that it has invited. Raises LocalProtocolError: we may
        not expel it."""
        self._spread(self.register.expel(member, reason, self._ports.wall()), None)

    def _spread(self, news: Expulsion, sender: PeerId | None) -> None:
        self._save()
        self._ports.perform(Explain("membership", self.register.describe(news), "warning"))
        for peer in list(self._ports.linked()):
            if peer != sender:
                self._tell(peer, [news])
        self._cut_those_out()

    def _cut_those_out(self) -> None:
        for peer in list(self._ports.linked()):
            if (entry := self.register.why_out(peer)) is not None:
                self._cut(peer, self.register.describe(entry.whole))
        if not (answer := self.register.standing(self.register.me)):
            self._out(answer.reason)

    def refused(self, reason: str) -> None:
        """Handle the Goodbye of a peer that we have greeted; before a member has vouched for us it
        ends the attempt. Once our invite has been used, why we are out is not the word of whoever
        refuses us."""
        if self.register.belongs:
            return
        answer = self.register.standing(self.register.me)
        known = not answer and self.register.is_used_up(self._ticket)
        self._out(answer.reason if known else f"the swarm refuses us: {reason}")

    def draw_ticket(self, secret: bytes, uses: int, life_s: float = TICKET_LIFE_S) -> Ticket:
        """Return a ticket for a new invite of ours, with 32 random bytes; raises
        LocalProtocolError: we may not invite."""
        ticket = self.register.draw_ticket(secret, uses, self._ports.wall(), life_s)
        self._save()
        return ticket

    def _tell(self, peer: PeerId, expulsions: Iterable[Expulsion]) -> None:
        for one in expulsions:
            self._ports.send(peer, Statements("expulsion", (one.statement, *one.chain)))

    def _save(self) -> None:
        self._keep(self.register.kept)
