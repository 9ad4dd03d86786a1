"""Single moves: a replica that would be more useful in the lowest stage asks to move there.

    IDLE       checks periodically whether a move would pay
    ASKING     asks the steward of the lowest stage for room
    RELEASING  asks the steward of its own stage for consent

Both must agree; ``Volunteer`` carries out the move. A replica that does not see the majority of the
swarm neither asks nor moves. State: one conversation. Decides nothing for others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import msgspec

from protocol.effects import Decision, Explain, SendLetter
from protocol.ids import PeerId, Stage
from protocol.matching import bodies, gain, preferences
from protocol.matching.board import Notice, stage_levels
from protocol.matching.bodies import Posting
from protocol.matching.context import Context
from protocol.matching.effects import Effect
from protocol.matching.gain import Move
from protocol.matching.timing import MOVE_HASTE_S, MOVE_LOOK_S, RETRY_S

INFINITY = float("inf")
TRIES = 4


class Step(Enum):
    """States of a mover; see the module's docstring."""

    IDLE = "idle"
    ASKING = "asking"
    RELEASING = "releasing"


@dataclass(frozen=True, slots=True)
class _Request:
    """An open request to a steward."""

    step: Step
    move: Move
    steward: PeerId
    version: int
    tries: int = 1


class Mover:
    """Machine of one replica's single moves."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._request: _Request | None = None
        self._due_at = INFINITY
        self._noted: Stage | None = None
        """The stage to which a move seemed to pay at the last check."""

    @property
    def step(self) -> Step:
        """The state of the conversation."""
        return self._request.step if self._request else Step.IDLE

    def next_deadline(self) -> float:
        """Return when ``tick`` has something to do, monotonic seconds."""
        return self._due_at

    def home_changed(self, home: Stage | None, now: float) -> None:
        """Restart: our first seat serves another stage, or none."""
        self._request = self._noted = None
        self._due_at = INFINITY if home is None else now + self._moment(MOVE_LOOK_S)

    def look(self, now: float) -> None:
        """Look at the changed board: an empty stage is urgent."""
        soon = now + self._moment(MOVE_HASTE_S)
        waits = self._request is None and soon < self._due_at < INFINITY
        if waits and self._context.board.facts(now).empty:
            self._due_at = soon

    def tick(self, home: Stage | None, rested_at: float, now: float) -> list[Effect]:
        """Check whether a move would pay, or repeat an unanswered request.

        Args:
            home: the stage our first seat serves; None: no move now.
            rested_at: monotonic seconds from which we may move again.
            now: monotonic seconds.
        """
        if now < self._due_at:
            return []
        if home is None:
            self.home_changed(None, now)
            return []
        if self._request is None:
            self._due_at = max(now + MOVE_LOOK_S, rested_at)
            return self._look(home, now) if now >= rested_at else []
        if (hindrance := self._hindrance()) is not None:
            return self._give_up(hindrance, now)
        return self._ask_again(self._request, now)

    def receive(
        self, sender: PeerId, body: bodies.Permit, now: float
    ) -> tuple[Move | None, list[Effect]]:
        """Take an answer; return the move once both stages agree.

        Args:
            sender: the answer's verified signer.
            body: the answer.
            now: monotonic seconds.
        """
        request = self._request
        ours = request is not None and (sender, body.version) == (request.steward, request.version)
        if request is None or not ours or body.volunteer != self._context.me:
            self._context.counters["matching-late-answer"] += 1
            return None, []
        stage, move = bodies.stage_of(body), request.move
        if not body.granted:
            words = f"staying at stage {move.home}: stage {stage} says: {body.reason}"
            return None, self._give_up(words, now, "rejection")
        if (hindrance := self._hindrance()) is not None:
            return None, self._give_up(hindrance, now)
        if request.step is Step.ASKING:
            return None, self._send(Step.RELEASING, move, move.home, now)
        self._request, self._due_at = None, now + MOVE_LOOK_S
        return move, []

    # --- inside -----------------------------------------------------------------------------

    def _look(self, home: Stage, now: float) -> list[Effect]:
        population, me = self._context.population, self._context.me
        levels = self._context.board.levels(now)
        if not levels or me not in population:
            return []
        postings = [notice.posting for notice in self._context.board.notices(now).values()]
        to = gain.neediest(postings, levels)
        move = Move.of(me, to, population)
        if move is None or move.home != home or move.second == to:
            return []
        seen = self._as_seen(postings, move)
        if gain.objection(seen, stage_levels(postings), levels, move) is not None:
            self._noted = None
            return []
        if postings[to].copies and self._noted != to:
            self._noted = to  # newcomers and second seats may fix it meanwhile
            return []
        if self._hindrance() is not None:
            return []
        return self._send(Step.ASKING, move, to, now)

    def _as_seen(self, postings: Sequence[Posting], move: Move) -> list[Posting]:
        """Return the postings corrected by our own view: the target has at least as many replicas
        as we see, and a stage that we leave at most as many, whatever its steward posts."""
        seen, population = list(postings), self._context.population
        for stage in (move.to, *move.leaves):
            said, found = seen[stage].copies, len(population.holders(stage))
            copies = max(said, found) if stage == move.to else min(said, found)
            seen[stage] = msgspec.structs.replace(seen[stage], replicas=copies, seconds=0)
        return seen

    def _hindrance(self) -> str | None:
        """Return why we may not move, whatever the stages answer, or None."""
        if not self._context.sees_majority:
            return "staying: we do not see the majority of the swarm"
        return None

    def _send(self, step: Step, move: Move, stage: Stage, now: float) -> list[Effect]:
        notice = self._context.board.current(stage, now)
        if notice is None:
            return self._give_up(f"stage {stage} has no steward", now)
        self._request = _Request(step, move, notice.author, self._context.number(now))
        self._due_at = now + RETRY_S
        low = preferences.words(self._context.board.levels(now)[move.to])
        words = (
            f"asking stage {move.to} for room: it is the lowest ({low})"
            if step is Step.ASKING
            else f"asking stage {move.home} to let us go to stage {move.to}"
        )
        return [self._letter(self._request, notice, now), Explain("matching", words, "debug")]

    def _ask_again(self, request: _Request, now: float) -> list[Effect]:
        stage = request.move.to if request.step is Step.ASKING else request.move.home
        notice = self._context.board.current(stage, now)
        if request.tries >= TRIES or notice is None or notice.author != request.steward:
            return self._give_up(f"staying: the steward of stage {stage} does not answer", now)
        step, move, steward, version = request.step, request.move, request.steward, request.version
        self._request = _Request(step, move, steward, version, request.tries + 1)
        self._due_at = now + RETRY_S
        return [self._letter(self._request, notice, now)]

    def _give_up(self, words: str, now: float, decision: Decision = "place") -> list[Effect]:
        self._request, self._due_at = None, now + MOVE_LOOK_S
        return [Explain("matching", words, decision=decision)]

    def _letter(self, request: _Request, notice: Notice, now: float) -> SendLetter:
        posting, move = notice.posting, request.move
        number = self._context.number(now)
        body: bodies.AboutMove
        if request.step is Step.ASKING:
            wait_s = self._context.population.download_s(self._context.me, move.to)
            body = bodies.Transfer(
                stage=posting.stage,
                mandate=posting.mandate,
                issued_ms=number,
                steward=request.steward,
                version=request.version,
                home=move.home,
                download_ms=int(min(wait_s, 2.0**31) * 1000),
            )
        else:
            body = bodies.Release(
                stage=posting.stage,
                mandate=posting.mandate,
                issued_ms=number,
                steward=request.steward,
                version=request.version,
                to=move.to,
            )
        return SendLetter(request.steward, bodies.KINDS[type(body)], bodies.encode_body(body))

    def _moment(self, within_s: float) -> float:
        """Return a time within an interval that differs from peer to peer."""
        return within_s * (preferences.tie(self._context.me, Stage(1)) % 1000) / 1000
