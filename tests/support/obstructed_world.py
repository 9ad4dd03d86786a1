"""A chaos world without faults, in which one member obstructs the others by legal messages.

The liar's machines are real; what it sends others is distorted on its way out. Commits of the
honest ones are counted from then on, in virtual seconds.
"""

import re
from collections import Counter
from collections.abc import Callable

from client.lab.simulate.chaos.config import ChaosConfig
from client.lab.simulate.chaos.volunteer import Volunteer
from client.lab.simulate.chaos.world import ChaosWorld
from client.lab.simulate.seats import Parts
from protocol.effects import Penalise
from protocol.ids import PeerId
from protocol.pipeline.effects import Committed
from protocol.seat.effects import SeatEffect
from protocol.wire.messages import JoinStage, Message
from protocol.wire.parts import SeatStatus

Distort = Callable[[PeerId, Message], list[tuple[Message, float]]]
"""(to, message) -> what is sent instead, each so many seconds later."""
WARM_UP_S = 20.0


class ObstructedWorld(ChaosWorld):
    """See the module's docstring."""

    def __init__(self, config: ChaosConfig) -> None:
        self.liars: dict[PeerId, Distort] = {}
        self.misled: dict[PeerId, Callable[[Volunteer], None]] = {}
        """What is done to a volunteer's machines whenever it takes its seat."""
        self.forged: dict[PeerId, Callable[[], SeatStatus | None]] = {}
        """What a volunteer without a seat says of it."""
        self.commits: list[tuple[float, int]] = []
        """When a replica of a stage was the first to make a version."""
        self.blamed: Counter[tuple[PeerId, PeerId]] = Counter()
        """Points that somebody gave somebody."""
        self.apart: set[frozenset[PeerId]] = set()
        """Who is not linked with whom any more, because one has banned the other."""
        self._seen: set[tuple[int, int]] = set()
        super().__init__(config, faults=[])
        self.beats.rate = 2 / sum(config.compute_s)
        reaches = self.network.reaches
        self.network.reaches = lambda one, two: (  # type: ignore[method-assign]
            frozenset((one, two)) not in self.apart and reaches(one, two)
        )

    def of_stage(self, stage: int) -> list[Volunteer]:
        """Return a stage's volunteers, in the order in which they were made."""
        return [v for v in self.volunteers.values() if v.stage == stage]

    def by_word(self, stage: int) -> Volunteer:
        """Add a volunteer that only says that it serves a stage, at the newest version of it."""
        volunteer = self.add(stage, "by-word")
        volunteer.alive = True
        self.histories.begin(volunteer)
        for other in [v for v in self.volunteers.values() if v is not volunteer]:
            self.beats.link(volunteer, other)
        self.forged[volunteer.peer] = lambda: self._as_served(stage)
        self.liars[volunteer.peer] = lambda _to, _message: []
        self._pulse_later(volunteer)
        return volunteer

    def admitted_by_word(self, stage: int) -> Volunteer:
        """Add one of ``by_word`` that all replicas of the stage have admitted."""
        newcomer, began = self.by_word(stage), self.agenda.now
        for member in self.of_stage(stage):
            if member is not newcomer:
                super().send(newcomer, member.peer, JoinStage(stage))
        while not all(newcomer.peer in v.seat._siblings() for v in self.of_stage(stage) if v.seat):
            assert self.agenda.now < began + 5.0
            self.advance_to(self.agenda.now + 0.1)
        return newcomer

    def leader_in_mid_step(self, stage: int) -> Volunteer:
        """Go on until a replica leads a step of a stage that is begun and far from done."""
        while True:
            self.advance_to(self.agenda.now + 0.02)
            seats = [v.seat for v in self.of_stage(stage) if v.seat is not None]
            leaders = {seat.current_leader() for seat in seats}
            held = set().union(*(s.pipeline.in_flight() | s.pipeline.done() for s in seats))
            [led_by, *others] = leaders
            if (
                not others
                and led_by in self.volunteers
                and 0 < len(held) <= self.config.per_step / 2
            ):
                return self.volunteers[led_by]

    def set_aside(self) -> set[str]:
        """Return whom anybody has set aside, as the log writes it."""
        said = (re.search(r"(\S+) of stage \d+ is set aside", line) for line in self.log)
        return {found[1] for found in said if found}

    def _as_served(self, stage: int) -> SeatStatus | None:
        seats = [v.seat for v in self.of_stage(stage) if v.seat is not None]
        newest = max(seats, key=lambda seat: seat.step)
        return newest.status(self.beats.rate)

    def part(self, one: Volunteer, two: Volunteer) -> None:
        """One bans the other: their link ends and none is made again."""
        self.apart.add(frozenset((one.peer, two.peer)))
        self.network.close(one, two.peer)
        self.beats._unlinked(one, two.peer)
        one.contacts.closed(two.peer, by_peer=False, now=self.now_of(one))
        self.beats._show(one)

    def rate(self, stage: int, since: float, until: float) -> float:
        """Return the steps per second that a stage has made in a time."""
        made = sum(of == stage and since <= at < until for at, of in self.commits)
        return made / (until - since)

    def measure(self, begin: Callable[[], None]) -> tuple[float, float, float]:
        """Return steps/s before ``begin``, in the 15 s after it, and in the 30 s after these."""
        self.advance_to(WARM_UP_S)
        before = self.slowest(5.0, WARM_UP_S)
        begin()
        self.advance_to(WARM_UP_S + 45.0)
        during = self.slowest(WARM_UP_S, WARM_UP_S + 15)
        return before, during, self.slowest(WARM_UP_S + 15, WARM_UP_S + 45)

    def slowest(self, since: float, until: float) -> float:
        """Return the rate of the slowest stage."""
        return min(self.rate(s, since, until) for s in range(self.config.stages))

    def mislead(self, volunteer: Volunteer, how: Callable[[Volunteer], None]) -> None:
        """Change a volunteer's machines from now on."""
        self.misled[volunteer.peer] = how
        how(volunteer)

    # --- hooks -------------------------------------------------------------------------------

    def send(self, peer: Volunteer, to: PeerId, message: Message, parts: Parts = ()) -> None:
        distort = self.liars.get(peer.peer)
        if distort is None or to == peer.peer:
            super().send(peer, to, message, parts)
            return
        for said, later_s in distort(to, message):
            if not later_s:
                super().send(peer, to, said, parts)
                continue
            send = super().send
            self.agenda.after(later_s, lambda s=said, p=parts, f=send: f(peer, to, s, p))

    def committed(self, peer: Volunteer, committed: Committed) -> None:
        key = (peer.stage, committed.version)
        if key not in self._seen:
            self._seen.add(key)
            self.commits.append((self.agenda.now, peer.stage))
        super().committed(peer, committed)

    def opened(self, volunteer: Volunteer) -> None:
        if (how := self.misled.get(volunteer.peer)) is not None:
            how(volunteer)

    def _perform_one(self, peer: Volunteer, effect: SeatEffect, parts: Parts) -> None:
        if isinstance(effect, Penalise):
            self.blamed[peer.peer, effect.peer] += effect.points
        super()._perform_one(peer, effect, parts)

    def _pulse(self, volunteer: Volunteer, incarnation: int) -> None:
        if (forge := self.forged.get(volunteer.peer)) is not None:
            volunteer.returning = forge()
        super()._pulse(volunteer, incarnation)
        if volunteer.peer in self.forged:
            volunteer.returning = self.forged[volunteer.peer]()
            self.beats.say(volunteer)
