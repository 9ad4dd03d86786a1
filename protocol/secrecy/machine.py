"""What one replica deals, keeps and opens in the rounds of a run whose sums are secret.

    plan followed -> dealing -> masked -> committed -> opened

A member deals as soon as it follows a plan, masks its contribution when all members have dealt to
it, and shows its shares only once the attempt is committed: of one attempt of a step, whoever leads
and whatever plans it is sent. So of a step one sum becomes known, that of one set of members.

State: dealings and openings of the running step, which may overtake the plan or the commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from hashlib import blake2b
from typing import TypeVar

from protocol.effects import Effect, Send
from protocol.ids import PeerId
from protocol.secrecy.attempt import Mask, SecretAttempt
from protocol.wire.messages import Dealing, Opening, Plan

Early = TypeVar("Early", Dealing, Opening)
MAX_EARLY = 4
"""Attempts of which a sender's dealings (and openings) are kept."""
LEAST_MEMBERS = 3
"""Of a plan: of two members, each would know the other's contribution from the sum."""


class Masking:
    """See the module's docstring.

    Args:
        me: our id.
        secret: 32 random bytes of this seat, or more.
        siblings: returns the replicas of the stage that we see, ourselves included.
        roll: returns the members of the last committed plan.
    """

    def __init__(
        self,
        me: PeerId,
        secret: bytes,
        siblings: Callable[[], Set[PeerId]],
        roll: Callable[[], Set[PeerId]] = frozenset,
    ) -> None:
        self._me, self._secret, self._siblings, self._roll = me, secret, siblings, roll
        self._drawn = 0
        """Attempts that we have drawn secrets for: none is drawn from twice."""
        self.start_step()

    def start_step(self) -> None:
        """Begin another step: nothing of the last one is needed any more."""
        self._attempt: SecretAttempt | None = None
        self._plan: Plan | None = None
        self._dealings: dict[tuple[int, PeerId], Dealing] = {}
        self._openings: dict[tuple[int, PeerId], Opening] = {}
        self.opened: int | None = None
        """The attempt of this step that we have opened."""

    def may_follow(self, plan: Plan) -> bool:
        """Whether a plan hides us: it names only replicas that we see, three at least, and of those
        on the roll that we see all but one.

        So once another plan has all its contributions, at most one honest replica is left that has
        not promised it, and could still open this one. A replica that only claims to serve need
        not be named, for it need not contribute.
        """
        members = {PeerId(member.peer) for member in plan.members}
        seen = self._siblings()
        left_out = (self._roll() & seen or seen) - members
        hidden = members <= seen and len(members) >= LEAST_MEMBERS
        return hidden and len(left_out) <= 1 and self.opened is None

    # --- dealing ---------------------------------------------------------------------------

    def follow(self, plan: Plan) -> list[Effect]:
        """Begin an attempt: deal, and look at what came early."""
        self._drawn += 1
        count = self._drawn.to_bytes(8, "little")
        secret = blake2b(count, key=self._secret[:64], digest_size=32).digest()
        members = [PeerId(member.peer) for member in plan.members]
        attempt = self._attempt = SecretAttempt(self._me, members, secret)
        self._plan = plan
        effects: list[Effect] = []
        if self._me in members:
            for peer in [peer for peer in members if peer != self._me]:
                effects.append(
                    Send(peer, self._dealing(attempt.hashes, *attempt.secrets_for(peer)))
                )
            effects += [Send(PeerId(p), self._dealing(attempt.hashes)) for p in plan.observers]
        self._dealings = {k: v for k, v in self._dealings.items() if k[0] >= plan.attempt}
        self._openings = {k: v for k, v in self._openings.items() if k[0] >= plan.attempt}
        return effects

    def _dealing(self, hashes: tuple[bytes, ...], share: bytes = b"", pair: bytes = b"") -> Dealing:
        plan = self._followed()
        return Dealing(plan.stage, plan.step, plan.attempt, hashes, share, pair)

    def dealing(self, sender: PeerId, message: Dealing) -> None:
        """Keep what a member deals; what it said first of an attempt stands."""
        _keep(self._dealings, sender, message)

    def false_dealers(self) -> list[PeerId]:
        """Take the dealings of our attempt; return the members whose dealings contradict
        themselves."""
        attempt, number, false = self._current(), self._followed().attempt, []
        for (of, sender), said in list(self._dealings.items()):
            if of == number:
                del self._dealings[of, sender]
                if not attempt.dealt(sender, said.hashes, said.share, said.pair):
                    false.append(sender)
        return false

    def missing(self) -> list[PeerId]:
        """Return the members whose dealings we still wait for."""
        return self._current().missing()

    def masks(self) -> tuple[Mask, ...] | None:
        """Return the masks of our contribution; None while a dealing is missing."""
        return None if self.missing() else self._current().masks()

    def fingerprint(self) -> bytes | None:
        """Return the hash of what was published in our attempt; None while some is missing."""
        return None if self.missing() else self._current().fingerprint()

    # --- opening ---------------------------------------------------------------------------

    def open(self) -> list[Effect]:
        """Our attempt is committed: show our shares to all, once."""
        if self.opened is not None:
            return []
        plan = self._followed()
        self.opened = plan.attempt
        members = [PeerId(member.peer) for member in plan.members]
        return self._show([*members, *map(PeerId, plan.observers)])

    def show_again(self, peer: PeerId) -> list[Effect]:
        """Show one peer the shares that we have shown: they may have been lost with a link."""
        plan = self._plan
        return self._show([peer]) if plan is not None and self.opened == plan.attempt else []

    def _show(self, to: Iterable[PeerId]) -> list[Effect]:
        plan = self._followed()
        if all(member.peer != self._me for member in plan.members):
            return []
        said = Opening(plan.stage, plan.step, plan.attempt, self._current().open())
        return [Send(peer, said) for peer in to if peer != self._me]

    def opening(self, sender: PeerId, message: Opening) -> None:
        """Keep the shares that a member shows; what it showed first of an attempt stands."""
        _keep(self._openings, sender, message)

    def false_openers(self) -> list[PeerId]:
        """Take the shares shown in our attempt; return the members whose shares are not those that
        were dealt to them."""
        attempt, number, false = self._current(), self._followed().attempt, []
        for (of, sender), said in list(self._openings.items()):
            if of == number:
                del self._openings[of, sender]
                if not attempt.opened(sender, said.shares):
                    false.append(sender)
        return false

    def seeds(self) -> tuple[bytes, ...] | None:
        """Return the seeds that open the committed sum; None while shares are missing."""
        return None if self.opened is None else self._current().seeds()

    def closed_to(self) -> list[PeerId]:
        """Return the members that have not shown their shares, while those are needed."""
        attempt = self._attempt
        if attempt is None or self.opened is None or attempt.seeds() is not None:
            return []
        shown = attempt.openers()
        return [peer for peer in attempt.members if peer not in shown]

    def is_lost(self) -> bool:
        """Whether too few of the members are left to open the committed sum. Who has dealt for a
        later attempt has promised that, and will not open this one."""
        attempt = self._attempt
        if attempt is None or self.opened is None:
            return False
        elsewhere = {peer for of, peer in self._dealings if of > self.opened}
        there = attempt.openers() | (self._siblings() & set(attempt.members) - elsewhere)
        return len(there) < attempt.needed

    def forget(self, peer: PeerId) -> None:
        """A peer is lost: drop what it sent for attempts not begun."""
        kept = self._plan.attempt if self._plan else None
        for early in (self._dealings, self._openings):
            for key in [k for k in early if k[1] == peer and k[0] != kept]:
                del early[key]

    def _current(self) -> SecretAttempt:
        if self._attempt is None:
            raise RuntimeError("no plan is followed")
        return self._attempt

    def _followed(self) -> Plan:
        if self._plan is None:
            raise RuntimeError("no plan is followed")
        return self._plan


def _keep(early: dict[tuple[int, PeerId], Early], sender: PeerId, message: Early) -> None:
    """Keep a sender's messages of its newest attempts, the first of each."""
    early.setdefault((message.attempt, sender), message)
    own = sorted(attempt for attempt, of in early if of == sender)
    for attempt in own[:-MAX_EARLY]:
        del early[attempt, sender]


def least_members(*, secret: bool) -> int:
    """Return how many replicas a plan needs."""
    return LEAST_MEMBERS if secret else 1
