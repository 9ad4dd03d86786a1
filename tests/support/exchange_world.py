"""A quick world of peers that run full epochs only: voters at home, stewards, lossy messages.

Views and postings are fixed and shared, so that what differs between peers is only what they have
heard. Deterministic in its seed. Records arrive in the end, direct messages may not.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from protocol.effects import Publish, SendSigned
from protocol.ids import PeerId, Stage
from protocol.manifest import StageCost
from protocol.matching import stewards
from protocol.matching.board import Board
from protocol.matching.bodies import COMMITTED, Mandate, Posting
from protocol.matching.common import Common
from protocol.matching.context import Context
from protocol.matching.design import FULL, Design
from protocol.matching.exchange import bodies
from protocol.matching.exchange.exchange import Exchange
from protocol.matching.pool import HeldPlace, Pool
from protocol.matching.population import Member, Population
from tests.support import epoch_planning
from tests.support.matching_world import START_S, WALL_S, Weather, peer

BEACON = stewards.beacon_at(WALL_S)
MANDATE = Mandate(BEACON, 1)
OLD_S = WALL_S - 5000
"""Spectators are older than the beacon, so they are the stewards."""


class Seat:
    """A volunteer that serves its home and notes where it is to move."""

    def __init__(self, home: Stage | None) -> None:
        self.settled_home = home
        self.moved_to: Stage | None = None
        self.moves = 0

    def may_leave(self, now: float) -> Stage | None:
        return self.settled_home

    def move(self, stage: Stage, reason: str, now: float) -> list[object]:
        self.moved_to, self.moves = stage, self.moves + 1
        return []


class Office:
    """A stage's steward at rest."""

    def __init__(self, stage: Stage) -> None:
        self.mandate = MANDATE
        self.phase = COMMITTED
        self.pool = Pool(stage)
        self.expected: list[PeerId] = []

    def expect(self, places: list[HeldPlace]) -> None:
        self.expected += [place.peer for place in places]


@dataclass(frozen=True)
class Swarm:
    """The volunteers' places."""

    population: Population
    homes: Mapping[PeerId, Stage]
    fetching: frozenset[PeerId]


def swarm(
    seed: int,
    *,
    workers: tuple[int, int] = (5, 10),
    stages: tuple[int, int] = (2, 4),
    fetching: float = 0.05,
    design: Design = FULL,
) -> Swarm:
    """Return unequal workers at random homes, some dual-homed or fetching, and six spectators."""
    dice = random.Random(seed)
    count = dice.randint(*stages)
    costs = tuple(StageCost(1, 1e9 * (1 + s % 3) / 2, 1000, 10.0, 10.0, 1e9) for s in range(count))
    members, homes, busy = [], {}, set()
    for number in range(dice.randint(*workers)):
        name = peer(seed * 1000 + number)
        homes[name] = home = Stage(dice.randrange(count))
        speed, link = dice.lognormvariate(0, 0.8) * 1e9, dice.lognormvariate(0, 1.5) * 500
        fetches = dice.random() < fetching
        beside = [Stage(s) for s in (home - 1, home + 1) if 0 <= s < count]
        second = dice.choice(beside) if dice.random() < 0.25 and not fetches else None
        held = frozenset({home} if second is None else {home, second})
        members.append(
            Member(
                name,
                WALL_S,
                speed,
                1e9,
                link,
                1e12,
                held,
                measured_s=1000.0,
                home=home,
                second=second,
                fetching=held if fetches else frozenset(),
            )
        )
        if fetches:
            busy.add(name)
    spectators = [
        Member(peer(10**9 + seed * 10 + n), OLD_S, 1e9, 1e9, 1e9, 0.0, measured_s=1000.0)
        for n in range(6)
    ]
    population = Population([*members, *spectators], costs, 2, design)
    return Swarm(population, homes, frozenset(busy))


class ExchangeWorld:
    """Exchanges, the queue of what is about to happen, and what was sent."""

    def __init__(self, swarm: Swarm, seed: int, weather: Weather) -> None:
        self.swarm = swarm
        self.weather = weather
        self.random = random.Random(seed)
        self.now = START_S
        population = swarm.population
        self.stewards = {
            Stage(s): population.succession(Stage(s), BEACON)[0] for s in population.stages
        }
        self.offices = {stage: self._office(stage) for stage in self.stewards}
        self.board = self._posted()
        self.seats: dict[PeerId, Seat] = {}
        self.exchanges: dict[PeerId, Exchange] = {}
        self.contexts: dict[PeerId, Context] = {}
        self.sent: list[tuple[PeerId, bodies.Letter]] = []
        self.asked: list[tuple[PeerId, int, bodies.Vote]] = []
        """Votes with the cutoff that the voter had heard of."""
        self.spread: list[tuple[PeerId, bodies.Spread]] = []
        self.last_word: bodies.Epoch | None = None
        self.words: list[str] = []
        self._newest: dict[tuple[PeerId, PeerId, str, str], int] = {}
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._alarm: dict[PeerId, float] = {}
        self._mute: set[PeerId] = set()
        for name in population.members:
            self._start(name)
        for name in population.members:
            self._perform(name, self.exchanges[name].tick(self.now))

    @property
    def chair(self) -> Exchange:
        return self.exchanges[self.stewards[Stage(0)]]

    def moves(self) -> dict[PeerId, Stage]:
        """Return who was told to move, and where to."""
        return {p: seat.moved_to for p, seat in self.seats.items() if seat.moved_to is not None}

    def expected(self) -> dict[PeerId, Stage]:
        """Return whom the stages expect."""
        return {p: stage for stage, office in self.offices.items() for p in office.expected}

    def ballots(self) -> list[tuple[PeerId, bodies.Ballot]]:
        """Return every ballot that was published."""
        return [(who, body) for who, body in self.spread if isinstance(body, bodies.Ballot)]

    def outcome(self) -> epoch_planning.Outcome:
        """Return what one place would decide."""
        swarm = self.swarm
        return epoch_planning.full_epoch(swarm.population, swarm.homes, swarm.fetching)

    def ended(self) -> bool:
        """Tell whether the last word of the chair has come to everybody."""
        last = self.last_word
        if last is None or last.phase not in (bodies.COMMIT, bodies.ABORT):
            return False
        carried = all(exchange.last_decided == last.round for exchange in self.exchanges.values())
        return last.phase == bodies.ABORT or carried

    def silence(self, who: PeerId) -> None:
        """Let a worker hang: it hears no letter any more."""
        self._mute.add(who)

    def run(self, seconds: float) -> None:
        """Let time pass until the epoch has ended, or is over time."""
        end = self.now + seconds
        while self._queue and self._queue[0][0] <= end and not self.ended():
            self.now, _, action = heapq.heappop(self._queue)
            action()

    # --- inside -----------------------------------------------------------------------------

    def _office(self, stage: Stage) -> Office:
        office, swarm = Office(stage), self.swarm
        for name, home in swarm.homes.items():
            if home == stage:
                rate = swarm.population.rate(name, stage)
                office.pool.put(HeldPlace(name, rate, rate, 1, START_S + 1e6, locked=True))
        return office

    def _posted(self) -> Board:
        population = self.swarm.population
        board = Board(len(population.costs))
        board.observe(population, WALL_S)
        for (stage, basis), author in zip(
            enumerate(epoch_planning.bases(population, self.swarm.homes)),
            self.stewards.values(),
            strict=True,
        ):
            level, home = basis.load, sum(h == stage for h in self.swarm.homes.values())
            posting = Posting(
                stage, MANDATE, int(WALL_S * 1000), 1, COMMITTED, level.level, home, level.level,
                home, 1, 1, population.redundancy, 0, 0, level.up, level.up_there, level.down,
                level.down_there, basis.replicas - home,
            )  # fmt: skip
            board.pin(author, posting, START_S)
        return board

    def _start(self, name: PeerId) -> None:
        self.seats[name] = seat = Seat(self.swarm.homes.get(name))
        if name in self.swarm.fetching:
            seat.settled_home = None
        context = Context(name, self.swarm.population, self.board, WALL_S - START_S)
        offices = {s: self.offices[s] for s, steward in self.stewards.items() if steward == name}
        self.contexts[name] = context
        self.exchanges[name] = Exchange(context, seat, offices, Common(context))

    def _perform(self, who: PeerId, effects: list[object]) -> None:
        for effect in effects:
            match effect:
                case SendSigned():
                    self._send(who, effect)
                case Publish():
                    self._publish(who, effect)
                case _:
                    self.words.append(getattr(effect, "words", ""))
        self._arm(who)

    def _send(self, who: PeerId, effect: SendSigned) -> None:
        body = bodies.decode(effect.kind, effect.body)
        assert isinstance(body, bodies.Letter)
        self.sent.append((who, body))
        if isinstance(body, bodies.Vote):
            ballot = self.exchanges[who].registry.ballot(body.round, Stage(body.stage), self.now)
            self.asked.append((who, ballot.cutoff if ballot else 0, body))
        mine = effect.peer == who
        copies = 2 if self.random.random() < self.weather.duplication else 1
        for _ in range(copies):
            if mine or self.random.random() >= self.weather.loss:
                delay_s = 0.0 if mine else self._pick(self.weather.delay_s)
                self._after(delay_s, lambda: self._receive(who, effect.peer, body))

    def _receive(self, who: PeerId, to: PeerId, body: bodies.Letter) -> None:
        if to in self._mute:
            return
        self._perform(to, self.exchanges[to].receive(who, body, self.now))

    def _publish(self, who: PeerId, effect: Publish) -> None:
        body = bodies.decode(effect.kind, effect.body)
        assert isinstance(body, bodies.Spread)
        assert effect.key == bodies.key_of(body)
        self.spread.append((who, body))
        if isinstance(body, bodies.Epoch):
            self.last_word = body
        for other in self.exchanges:
            delay_s = 0.0 if other == who else self._pick(self.weather.gossip_s)
            while other != who and self.random.random() < self.weather.loss:
                delay_s += 0.5
            self._after(delay_s, lambda o=other: self._learn(who, o, effect, body))

    def _learn(self, who: PeerId, to: PeerId, effect: Publish, body: bodies.Spread) -> None:
        key = (to, who, effect.kind, effect.key)
        if self._newest.get(key, -1) < effect.seq:
            self._newest[key] = effect.seq
            self._perform(to, self.exchanges[to].read(who, body, self.now))

    def _after(self, delay_s: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (self.now + delay_s, next(self._order), action))

    def _arm(self, who: PeerId) -> None:
        due = max(self.exchanges[who].next_deadline(self.now), self.now)
        if self._alarm.get(who) != due and due < float("inf"):
            self._alarm[who] = due
            self._after(due - self.now, lambda: self._ring(who, due))

    def _ring(self, who: PeerId, due: float) -> None:
        if self._alarm.get(who) == due:
            del self._alarm[who]
            self._perform(who, self.exchanges[who].tick(self.now))

    def _pick(self, bounds: tuple[float, float]) -> float:
        return self.random.uniform(*bounds)


def counted(world: ExchangeWorld) -> Counter[str]:
    """Return what all peers refused, by reason."""
    return sum((Counter(o.counters) for o in world.contexts.values()), Counter())
