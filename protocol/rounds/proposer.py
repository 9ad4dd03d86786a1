"""The leader's way to a decree: ask the electors for promises, propose, count votes.

    idle -> asking -> free -> proposing -> closed
                  \\-> bound -/

The leader whom the decree before designates begins ``free``, with attempt 1. A majority's promises
say whether any of them has voted: if not, the leader is free to plan; else it is bound to propose
the decree of the latest vote, which may be in force already (SPEC.md, section 12). We go back to
``idle`` when the electors that do not refuse us are no majority, or have not been one for
``ANSWER_S``, and then leave the step to another leader for a while.

State: of one step, the electors' answers. Times are monotonic seconds.
"""

import enum
import math
from collections.abc import Callable, Collection

from msgspec.structs import replace

from protocol import limits
from protocol.decree.decree import (
    PROMISE,
    VOTE,
    Verify,
    are_ready,
    bound_by,
    digest_of,
    encode_ballot,
)
from protocol.effects import Send
from protocol.ids import PeerId
from protocol.pace import ANSWER_S, LOOK_S
from protocol.rounds.obstruction import MOST_DOUBLINGS
from protocol.rounds.quorum import Quorum
from protocol.wire.messages import Commit, Propose, Vote
from protocol.wire.parts import Ballot, Decree, Promise


class State(enum.Enum):
    """See the module's docstring."""

    IDLE = "idle"
    ASKING = "asking"
    FREE = "free"
    BOUND = "bound"
    PROPOSING = "proposing"
    CLOSED = "closed"


class Proposer:
    """See the module's docstring.

    Args:
        quorum: knows who we are, our stage, and the electors of our step.
        era: of our seat.
        verify: checks a signature.
        left_out: whom a decree leaves out that is there, so that electors do not vote for it.
        before: the commit of the step before; None: it is not known, or there is none.
    """

    def __init__(
        self,
        quorum: Quorum,
        era: int,
        verify: Verify,
        left_out: Callable[[Decree], Collection[PeerId]],
        before: Callable[[], Commit | None],
    ) -> None:
        self._quorum, self._era, self._verify, self._left_out = quorum, era, verify, left_out
        self._before = before
        self.start_step(0)

    def start_step(self, step: int, now: float = math.inf) -> None:
        """Begin a step, of which we have led nothing, ``now`` or when we first ask."""
        self._step = step
        self.state, self.attempt, self._known = State.IDLE, 0, 0
        self._promised: dict[PeerId, Promise] = {}
        self._votes: dict[PeerId, bytes] = {}
        """The answers to this attempt."""
        self._refused: dict[PeerId, int] = {}
        """By elector: the later attempt for which it refuses this one."""
        self.decree: Decree | None = None
        """What we propose, or are bound to."""
        self._named: dict[bytes, Decree] = {}
        """By digest: what electors say that they have voted for."""
        self._again = False
        """Whether we have asked again: who answers has done so."""
        self._since = self._said_at = now
        self._overtaken, self.not_before = 0, -math.inf
        """How often the electors had promised the step to another, to whom we leave it until then.
        """

    # --- asking ----------------------------------------------------------------------------

    def ask(self, now: float, after: int = 0) -> list[Send]:
        """Begin a new attempt with a question. The first one needs none if it is ours.

        Args:
            after: the last attempt in which our replica takes part, maybe that of a seat before.
        """
        self.attempt = min(max(self.attempt, self._known, after) + 1, limits.MAX_ATTEMPT)
        self._promised, self._votes, self.decree, self._refused = {}, {}, None, {}
        self._named, self._again = {}, False
        if self.attempt == 1:
            if self._quorum.designated == self._quorum.me:
                self.state = State.FREE
                return []
            self.attempt = 2
        self.state = State.ASKING
        return self._say(now)

    def give_up(self) -> None:
        """This attempt comes to nothing."""
        if self.state is not State.CLOSED:
            self.state = State.IDLE

    @property
    def promises(self) -> tuple[Promise, ...]:
        """Return what shows others that we may plan this attempt, or propose what it binds us to;
        nothing, if the attempt is the first one."""
        return tuple(sorted(self._promised.values()))

    # --- proposing -------------------------------------------------------------------------

    def propose(self, decree: Decree, now: float) -> list[Send]:
        """Ask the electors to vote for a decree."""
        self.state, self.decree, self._votes = State.PROPOSING, decree, {}
        self._refused = {}
        return self._say(now)

    def commit(self) -> Commit | None:
        """Return the commit, once a majority has voted."""
        if self.state is not State.PROPOSING or self.decree is None:
            return None
        if not self._quorum.suffice(self._votes):
            return None
        self.state = State.CLOSED
        votes = tuple(sorted(self._votes.items()))
        said = (self._quorum.stage, self._step, self.attempt, self._quorum.me, self.decree, votes)
        return Commit(*said, era=self._era)

    # --- answers ---------------------------------------------------------------------------

    def vote(self, sender: PeerId, message: Vote, now: float) -> None:
        """Take an elector's answer."""
        if sender not in self._quorum.electors or message.step != self._step:
            return
        if message.attempt != self.attempt:
            return
        if message.promised > message.attempt:
            self._refused[sender] = message.promised
            if not self._quorum.can_suffice_without(self._refused):
                self._give_way(now)
            return
        where = (self._quorum.stage, self._era, self._step, self.attempt, self._quorum.me)
        if self.state is State.PROPOSING and self.decree is not None:
            body = encode_ballot(Ballot(*where, self.attempt, digest_of(self.decree)))
            if self._verify(sender, VOTE, body, message.signature):
                self._votes[sender] = message.signature
        elif self.state is State.ASKING:
            value = b"" if message.decree is None else digest_of(message.decree)
            body = encode_ballot(Ballot(*where, message.voted, value))
            if not self._verify(sender, PROMISE, body, message.signature):
                return
            if message.voted:
                decree = message.decree
                if decree is None or not are_ready(decree, *where[:3], self._verify):
                    return  # no honest elector has voted for it
                self._named[value] = decree
            promise = Promise(sender, message.voted, value, message.signature)
            self._promised[sender] = promise
            self.count()

    def count(self) -> None:
        """See what the promises allow, now or after ``ANSWER_S``."""
        if self.state is not State.ASKING or not self._quorum.suffice(self._promised):
            return
        promises = self._promised.values()
        bound = bound_by(promises, self._quorum.electors)
        latest = max(promises, key=lambda promise: promise.voted).value
        decree = self._named.get(bound or latest)
        if decree is not None and self._left_out(decree):
            if self.missing() and not self._again:
                return
            decree = decree if bound else None
        self.decree = decree
        self.state = State.FREE if decree is None else State.BOUND

    def _give_way(self, now: float) -> None:
        """Electors take part in later attempts only: so is our next one."""
        if self.state in (State.ASKING, State.PROPOSING):
            most = int(limits.MAX_ATTEMPTS_PER_S * (1 + self._said_at - self._since))
            self._known = min(max(self._refused.values(), default=0), most)
            self.state = State.IDLE
            self._overtaken += 1
            self.not_before = now + LOOK_S / 2 * (1 << min(self._overtaken, MOST_DOUBLINGS))

    # --- time ------------------------------------------------------------------------------

    def _say(self, now: float) -> list[Send]:
        self._said_at, self._since = now, min(self._since, now)
        said = Propose(
            self._quorum.stage, self._step, self.attempt, before=self._before(), era=self._era
        )
        if self.state is State.PROPOSING:
            said = replace(said, decree=self.decree, promises=self.promises)
        return [Send(peer, said) for peer in self.missing()]

    def tick(self, now: float) -> list[Send]:
        """Say again what has not been answered, for it may have been lost with a link; unless some
        have refused it, or will: whom our decree leaves out is there again."""
        waits = self.state in (State.ASKING, State.PROPOSING)
        if not waits or now < self._said_at + ANSWER_S:
            return []
        proposed = self.decree if self.state is State.PROPOSING else None
        if self._refused or (proposed is not None and self._left_out(proposed)):
            self._give_way(now)
            return []
        self._again = True
        return self._say(now)

    def missing(self) -> list[PeerId]:
        """Return the electors that have not answered."""
        answers = self._votes if self.state is State.PROPOSING else self._promised
        return sorted(self._quorum.electors - answers.keys())
