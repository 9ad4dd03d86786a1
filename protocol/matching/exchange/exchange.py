"""One peer's part in full epochs: composes voter, boxes, witness and chair.

It routes records and letters to these parts and carries out attested decisions: our volunteer
moves, and our stewards expect the members that come. It reads the volunteer's seat and the
stewards' pools, and changes neither before a decision.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from protocol.effects import Explain
from protocol.ids import PeerId, Stage
from protocol.matching import stewards as succession
from protocol.matching.bodies import QUIET, Mandate, stage_of
from protocol.matching.context import Context
from protocol.matching.effects import Effect
from protocol.matching.exchange import bodies
from protocol.matching.exchange.bodies import COLLECT, COMMIT, FREEZE, LATE, Epoch, Round
from protocol.matching.exchange.box import Box
from protocol.matching.exchange.chair import Chair
from protocol.matching.exchange.pledges import Pledges
from protocol.matching.exchange.registry import CHAIR_STAGE, Call, Decision, Registry
from protocol.matching.exchange.timing import RECORD_S
from protocol.matching.exchange.voter import State, Voter
from protocol.matching.exchange.wishes import Terms
from protocol.matching.exchange.witness import Witness
from protocol.matching.last_members import LastMembers
from protocol.matching.pool import HeldPlace, Pool
from protocol.matching.timing import LEASE_S

INFINITY = float("inf")


class Seat(Protocol):
    """Our volunteer's home."""

    def may_leave(self, now: float) -> Stage | None:
        """Return the stage it serves if it may be matched again; None during and after a move."""

    def move(self, to: Stage, reason: str, now: float) -> list[Effect]:
        """Move to the home ``to`` because of ``reason`` at ``now``, make before break."""


class Office(Protocol):
    """A stage that we are steward of."""

    mandate: Mandate
    phase: int
    pool: Pool

    def expect(self, places: list[HeldPlace]) -> None:
        """Add places for members that move here."""


class Shared(Protocol):
    """State that simulated peers with equal inputs may share."""

    registry: Registry
    last_members: LastMembers


class Exchange:
    """The composition of the exchange's machines.

    Args:
        context: population, board and wall clock of this peer's matching.
        seat: this volunteer's seat.
        offices: our stewardships, by stage; read at every input.
        common: registry and last members.
    """

    def __init__(
        self, context: Context, seat: Seat, offices: Mapping[Stage, Office], common: Shared
    ) -> None:
        self.last_members = common.last_members
        self.registry = common.registry
        self._context = context
        self._seat = seat
        self._offices = offices
        self._pledges = Pledges()
        self._voter = Voter(context, self.registry)
        self._witness = Witness(context, self.registry, self._pledges, self._has_majority)
        self._boxes: dict[Stage, Box] = {}
        self._chair: Chair | None = None
        self._phase: int | None = None
        """Phase of the running epoch at the last look."""
        self._done: Round | None = None
        """The last decision that we carried out."""

    # --- read by the interface and tests ----------------------------------------------------

    @property
    def chair(self) -> Chair | None:
        """Our chair, while we are steward of stage 0."""
        return self._chair

    @property
    def place(self) -> Stage | None:
        """The stage that keeps us in the running vote."""
        return self._voter.place

    @property
    def is_voting(self) -> bool:
        """Whether our volunteer is called to vote in an epoch that is still running."""
        return self._voter.state is not State.IDLE

    @property
    def waits_for_boxes(self) -> bool:
        """Whether our volunteer waits for the last stage to open its box."""
        return self._voter.state is State.CALLED

    @property
    def last_decided(self) -> Round | None:
        """The last attempt whose decision was carried out here."""
        return self._done

    # --- inputs -----------------------------------------------------------------------------

    def receive(self, sender: PeerId, body: bodies.Letter, now: float) -> list[Effect]:
        """Take a signed letter.

        Args:
            sender: its verified signer.
            body: the letter.
            now: monotonic seconds.
        """
        if sender not in self._context.population:
            return self._count("matching-unknown-member")
        if isinstance(body, bodies.ToBox):
            box = self._boxes.get(stage_of(body))
            return list(box.receive(sender, body, now)) if box else self._count("matching-no-box")
        if body.volunteer != self._context.me:
            return self._count("matching-not-for-us")
        if isinstance(body, bodies.Call):
            home = self._seat.may_leave(now)
            return list(self._voter.called(sender, body, home, now))
        return list(self._voter.receive(sender, body, now))

    def read(self, author: PeerId, body: bodies.Spread, now: float) -> list[Effect]:
        """Take a signed record.

        Args:
            author: its verified signer.
            body: the record.
            now: monotonic seconds.
        """
        if not self.registry.pin(author, body, now):
            return []
        if isinstance(body, Epoch) or self._chair or self._phase not in (COLLECT, LATE):
            return self.look(now)
        if isinstance(body, bodies.Ballot) and self._voter.watches(stage_of(body)):
            return list(self._voter.look(now))
        return []

    def update(self, now: float) -> list[Effect]:
        """Look at the changed population."""
        self._observe_last_members(now)
        found: list[Effect] = []
        for box in self._boxes.values():
            found += box.update(now)
        return found

    def look(self, now: float) -> list[Effect]:
        """Look at changed postings, records, members and stewardships."""
        found = self._look_as_chair(now)
        if self.registry.is_idle(now):
            self._boxes.clear()
            self._voter.reset()
            return found
        call = self.registry.call(now)
        self._phase = call.epoch.phase if call else None
        found += self._tend_boxes(call, now)
        found += self._voter.look(now)
        if call:
            found += self._witness.look(call, now)
        return found + self._carry_out(now)

    def tick(self, now: float) -> list[Effect]:
        """Act on every deadline that has passed."""
        self._observe_last_members(now)
        found = self.look(now)
        for box in self._boxes.values():
            found += box.tick(now)
        return found + self._voter.tick(now)

    def next_deadline(self, now: float) -> float:
        """Return when ``tick`` has something to do, monotonic seconds."""
        times = [box.next_deadline() for box in self._boxes.values()]
        times.append(self._voter.next_deadline())
        if self._chair:
            times.append(self._chair.next_deadline())
        call = self.registry.call(now) if self._boxes else None
        if call:
            times.append(call.received_at + RECORD_S)
        return min(times)

    def farewell(self, peer: PeerId) -> None:
        """Note that a member left in order: its absence does not indicate a partition."""
        self.last_members.excuse(peer)

    # --- chair ------------------------------------------------------------------------------

    def _look_as_chair(self, now: float) -> list[Effect]:
        office = self._offices.get(CHAIR_STAGE)
        if office is None:
            self._chair = None
            return []
        if self._chair is None or self._chair.mandate != office.mandate:
            self._chair = Chair(
                self._context, self.registry, self._pledges, office.mandate, self._has_majority
            )
        return list(self._chair.look(now))

    # --- boxes ------------------------------------------------------------------------------

    def _tend_boxes(self, call: Call | None, now: float) -> list[Effect]:
        """Open, close and freeze our boxes as the chair's newest record requires."""
        epoch = call.epoch if call else None
        for stage in [s for s in self._boxes if s not in self._offices]:
            del self._boxes[stage]
        if epoch is None or epoch.phase not in (COLLECT, LATE, FREEZE, COMMIT):
            self._boxes.clear()
            return []
        found: list[Effect] = []
        for stage, office in self._offices.items():
            found += self._tend_box(stage, office, epoch, now)
        return found

    def _tend_box(self, stage: Stage, office: Office, epoch: Epoch, now: float) -> list[Effect]:
        box = self._boxes.get(stage)
        if box is None or box.round != epoch.round:
            return self._open_box(stage, office, epoch, now)
        if epoch.phase == LATE:
            return list(box.excuse_missing(now))
        return list(box.freeze(now)) if epoch.phase == FREEZE else []

    def _open_box(self, stage: Stage, office: Office, epoch: Epoch, now: float) -> list[Effect]:
        """Open a box, unless its stage is changing its steward or placing newcomers."""
        old = self._boxes.pop(stage, None)
        if epoch.phase not in (COLLECT, LATE) or office.phase < QUIET:
            return []
        same = old is not None and old.round.epoch == epoch.round.epoch
        box = Box(
            self._context,
            stage,
            office.mandate,
            epoch.round,
            Terms(epoch.quota_percent, epoch.fair, epoch.r),
            office.pool.places,
            self._pledges,
            old.excused if old and same else frozenset(),
        )
        self._boxes[stage] = box
        return list(box.tick(now))

    # --- decisions --------------------------------------------------------------------------

    def _carry_out(self, now: float) -> list[Effect]:
        """Carry out an attested decision for our volunteer and our stages, once."""
        decision = self.registry.decision(now, after=self._done)
        if decision is None:
            return []
        self._done = decision.epoch.round
        for stage, box in self._boxes.items():
            if box.round == self._done and stage in self._offices:
                self._offices[stage].expect(_expected(self._context, box, now))
        return self._move(decision, now)

    def _move(self, decision: Decision, now: float) -> list[Effect]:
        """Move to the place that the decided vote gave us, unless it is our home."""
        voter, epoch = self._voter, decision.epoch
        to = voter.place if voter.round == epoch.round else None
        home = self._seat.may_leave(now)
        voter.reset()
        if home is None:
            return []
        if to is None or to == home:
            return [Explain("matching", f"staying at stage {home}: {epoch.reason}")]
        return self._seat.move(to, epoch.reason, now)

    # --- inside -----------------------------------------------------------------------------

    def _observe_last_members(self, now: float) -> None:
        beacon = succession.beacon_at(self._context.wall_s(now))
        self.last_members.observe(self._context.population.members.keys(), beacon)

    def _has_majority(self) -> bool:
        return self._context.sees_majority

    def _count(self, reason: str) -> list[Effect]:
        self._context.counters[reason] += 1
        return []


def _expected(context: Context, box: Box, now: float) -> list[HeldPlace]:
    """Return the places of the members that move to a stage."""
    view = context.population
    return [
        HeldPlace(
            peer=peer,
            claimed_rate=view.rate(peer, box.stage),
            rate=view.rate(peer, box.stage),
            score=view.score(peer, box.stage, view.fair_level),
            expires_at=now + LEASE_S,
            locked=True,
        )
        for peer in sorted(box.arriving)
        if peer in view
    ]
