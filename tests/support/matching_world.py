"""A seeded world of peers that run the matching: an event queue with delays, loss and duplicates.

Deterministic in its seed. Direct messages may be lost, doubled and reordered; records and the
membership view always arrive in the end, as anti-entropy makes them. The world knows the true
servers of each stage, and notes the effect of every voluntary change.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from client.lab.simulate.agenda import Agenda
from protocol.effects import Explain, Penalise, Publish, Send
from protocol.ids import PeerId, Stage
from protocol.manifest import Manifest
from protocol.matching.bodies import Posting
from protocol.matching.effects import Assign, Unassign
from protocol.matching.machine import Matching
from protocol.matching.member import Member
from protocol.matching.population import Population
from protocol.matching.sharing import StageLevel
from protocol.matching.supply import Supply
from protocol.matching.timing import MEASURED_S
from protocol.wire import letters
from protocol.wire.messages import Letter, Message
from tests.support.matching_examples import WALL_S, manifest, member

START_S = 1000.0


@dataclass(frozen=True)
class Weather:
    """How bad the network is."""

    loss: float = 0.0
    duplication: float = 0.0
    delay_s: tuple[float, float] = (0.02, 0.02)
    gossip_s: tuple[float, float] = (0.05, 0.05)
    detection_s: tuple[float, float] = (3.0, 6.0)


CALM = Weather()
STORMY = Weather(0.10, 0.05, (0.005, 0.15), (0.02, 0.3))


@dataclass(frozen=True, slots=True)
class Design:
    """The ingredients of the matching that are in force."""

    dual_homing: bool = True
    """Volunteers that can also hold an adjacent stage and split their time."""
    moves: bool = True
    """Replicas move to a stage that calls them."""


FULL = Design()


def is_renewal(letter: Message) -> bool:
    """Tell whether a letter renews a final place."""
    body = letter.body if isinstance(letter, Letter) else None
    return isinstance(body, letters.Propose) and body.bound


@dataclass(frozen=True)
class Departure:
    """A served stage was given up, although it could have been served on."""

    at: float
    who: PeerId
    stage: Stage
    to: Stage | None
    """Target of the first seat; None: the second seat changed."""
    replicas: tuple[int, ...]
    """Of every stage afterwards."""
    before: int
    """The lowest effective level when the mover's new place did not count yet ..."""
    after: int
    """... and once its old one does not count any more, all else being equal."""
    still_served: bool
    """Whether the volunteer serves another stage at this moment."""


class World:
    """Peers, the queue of what is about to happen, and what has happened."""

    def __init__(
        self, manifest: Manifest, seed: int, weather: Weather = CALM, design: Design = FULL
    ) -> None:
        self.manifest = manifest
        self.design = design
        self.weather = weather
        self._agenda = Agenda(seed)
        self._agenda.now = START_S
        self.random = self._agenda.random
        self.members: dict[PeerId, Member] = {}
        self.machines: dict[PeerId, Matching] = {}
        self.views: dict[PeerId, dict[PeerId, Member]] = {}
        self.sent: Counter[str] = Counter()
        self.log: list[tuple[float, PeerId, object]] = []
        self.departures: list[Departure] = []
        self.set_out: list[tuple[float, PeerId, Stage, Assign]] = []
        """Moves of first seats, when they begin: (moment, who, home, what it was told)."""
        self.served: dict[PeerId, dict[Stage, int]] = {}
        """Stages that are served, with the seat."""
        self._newest: dict[tuple[PeerId, PeerId, Stage], int] = {}
        self._postings: dict[tuple[PeerId, Stage], Posting] = {}
        self._part: set[PeerId] = set()
        self._alarm: dict[PeerId, float] = {}

    @property
    def now(self) -> float:
        """Seconds of this world."""
        return self._agenda.now

    # --- what happens to peers ----------------------------------------------------------------

    def join(self, who: Member, at: float = 0.0) -> None:
        """Let a peer appear ``at`` seconds from now."""
        joins = who if self.design.dual_homing else replace(who, seats=1)
        self.after(at, lambda: self._join(joins))

    def crash(self, who: PeerId) -> None:
        """Stop a peer at once; the others find out a little later."""
        self.machines.pop(who)
        self.views.pop(who)
        self.members.pop(who)
        for other in list(self.machines):
            self.after(self._pick(self.weather.detection_s), lambda o=other: self._forget(o, who))

    def crash_after(self, delay_s: float, who: PeerId) -> None:
        self.after(delay_s, lambda: self.crash(who))

    def lose(self, who: PeerId, reason: str) -> None:
        """Let a peer's training side lose its stage."""
        machine = self.machines[who]
        assert machine.seats.home.stage is not None
        self.served.get(who, {}).pop(machine.seats.home.stage, None)
        self._holds(who, self.members[who].held - {machine.seats.home.stage})
        self._perform(who, machine.lost(machine.seats.home.stage, reason, self.now))

    def leave(self, who: PeerId) -> Sequence[object]:
        """Let a peer leave in order; it stays connected for a while."""
        effects = self.machines[who].leave(self.now)
        self._perform(who, effects)
        return effects

    def replay(self, sender: PeerId, effect: Send) -> None:
        """Deliver a message at once, whoever may have signed it."""
        self._receive(sender, effect)

    def cut(self, part: set[PeerId]) -> None:
        """Split the network; each side finds out that the other is gone."""
        self._part = part
        for who in self.machines:
            for other in self.machines:
                if self._apart(who, other):
                    delay_s = self._pick(self.weather.detection_s)
                    self.after(delay_s, lambda w=who, o=other: self._forget(w, o))

    def heal(self) -> None:
        """Join the network again; members and records spread again."""
        self._part = set()
        for who in self.machines:
            for other in list(self.members.values()):
                delay_s = self._pick(self.weather.gossip_s)
                self.after(delay_s, lambda w=who, o=other: self._meet(w, o))
            for (author, _), posting in list(self._postings.items()):
                self._spread(author, posting, who)

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        self._agenda.after(delay_s, action)

    def run(self, seconds: float, until: Callable[[], bool] | None = None) -> float:
        """Let time pass; return how much did."""
        began, end = self.now, self.now + seconds
        while not (until and until()):
            if not self._agenda.advance(end):
                self._agenda.now = end
                break
        return self.now - began

    # --- what can be seen ---------------------------------------------------------------------

    def matching(self) -> dict[PeerId, Stage | None]:
        """Return who serves or fetches what."""
        return {who: machine.seats.home.stage for who, machine in self.machines.items()}

    def spread(self) -> list[int]:
        """Return the number of replicas of every stage."""
        held = Counter(stage for stage in self.matching().values() if stage is not None)
        return [held[Stage(s)] for s in range(self.manifest.stage_count)]

    def placed(self) -> bool:
        """Tell whether everybody serves something."""
        homes = (machine.seats.home for machine in self.machines.values())
        return all(home.state.value == "serving" for home in homes)

    def said(self, words: str) -> bool:
        """Tell whether somebody explained something with these words."""
        return any(isinstance(e, Explain) and words in e.words for _, _, e in self.log)

    def single_moves(self) -> list[tuple[float, PeerId, Stage, Assign]]:
        """Return the moves to a stage that called."""
        return [move for move in self.set_out if "wants us" in move[3].reason]

    def population(self, members: Iterable[Member] | None = None) -> Population:
        """Return members as a population, by default the truth."""
        found = self.members.values() if members is None else members
        redundancy = self.manifest.policy.redundancy
        return Population(found, self.manifest.stages, redundancy)

    def replicas(self) -> tuple[int, ...]:
        """Return how many serve every stage."""
        staff = [held for who, held in self.served.items() if who in self.machines]
        return tuple(sum(s in held for held in staff) for s in range(self.manifest.stage_count))

    def levels(self, without: tuple[PeerId, Stage] | None = None) -> tuple[int, ...]:
        """Return the effective levels of what is served, a mover counted at its old home."""
        view, count = self.population(), self.manifest.stage_count
        supply = Supply((0,) * count, (StageLevel(0),) * count, view.redundancy)
        for who, held in self.served.items():
            kept = [s for s in held if (who, s) != without]
            if who in self.machines and kept:
                beside = len(kept) == 2 and abs(kept[0] - kept[1]) == 1
                supply = supply.after(kept if beside else kept[:1], view.rates(who))
        return supply.levels

    # --- delivery -----------------------------------------------------------------------------

    def _join(self, who: Member) -> None:
        known = dict(self.members)
        self.members[who.peer] = who
        self.machines[who.peer] = machine = Matching(who.peer, self.manifest, WALL_S - START_S)
        if not self.design.moves:
            for seat in (machine.seats.home, machine.seats.second):
                seat.moved_at = math.inf
        self.views[who.peer] = {who.peer: who}
        self._see(who.peer)
        for other in known.values():
            self.after(self._pick(self.weather.gossip_s), lambda o=other: self._meet(who.peer, o))
            self.after(self._pick(self.weather.gossip_s), lambda o=other: self._meet(o.peer, who))
        for (author, _), posting in list(self._postings.items()):
            self._spread(author, posting, who.peer)

    def _meet(self, who: PeerId, other: Member) -> None:
        current = self.members.get(other.peer)
        if who in self.views and current and not self._apart(who, other.peer):
            self.views[who][other.peer] = current
            self._see(who)

    def _forget(self, who: PeerId, gone: PeerId) -> None:
        if who in self.views and self.views[who].pop(gone, None):
            self._see(who)

    def _see(self, who: PeerId) -> None:
        effects = self.machines[who].update_members(self.views[who].values(), self.now)
        self._perform(who, effects)

    def _perform(self, who: PeerId, effects: Sequence[object]) -> None:
        for effect in effects:
            self.log.append((self.now, who, effect))
            match effect:
                case Send(_, Letter(body) as letter):
                    kind = type(body).__name__.lower()
                    self.sent["renewal" if is_renewal(letter) else kind] += 1
                    self._send(who, effect)
                case Publish(kind, Posting() as posting):
                    self.sent[kind] += 1
                    self._postings[who, posting.stage] = posting
                    for other in list(self.machines):
                        self._spread(who, posting, other)
                case Assign():
                    self._note_move(who, effect)
                    self._hold(who, effect.stage)
                    self.after(0.3, lambda s=effect.stage: self._serve(who, s))
                case Unassign():
                    self._leave_stage(who, effect.stage)
                    self._release(who, effect.stage)
                case Explain():
                    pass
                case Penalise():
                    self.sent["penalty"] += 1
        self._arm(who)

    def _note_move(self, who: PeerId, told: Assign) -> None:
        seats = self.machines[who].seats
        if seats.home.advertised not in (None, told.stage) and seats.seat_of(told.stage) == 0:
            self.set_out.append((self.now, who, seats.home.advertised, told))

    def _leave_stage(self, who: PeerId, stage: Stage) -> None:
        held = self.served.get(who, {})
        if stage not in held:
            return
        seats, seat = self.machines[who].seats, held[stage]
        home, second = seats.home.advertised, seats.second.advertised
        others = [s for s in held if s != stage]
        to = home if seat == 0 and home != stage else None
        # Before: without the place that replaces the one given up.
        newest = to if to is not None else next((s for s in others if s == second), None)
        before = self.levels() if newest is None else self.levels(without=(who, newest))
        del held[stage]
        after = self.levels()
        self.departures.append(
            Departure(
                self.now, who, stage, to, self.replicas(), min(before), min(after), bool(held)
            )
        )

    def _send(self, who: PeerId, effect: Send) -> None:
        copies = 2 if self.random.random() < self.weather.duplication else 1
        for _ in range(copies):
            if self.random.random() >= self.weather.loss:
                self.after(self._pick(self.weather.delay_s), lambda: self._receive(who, effect))

    def _receive(self, who: PeerId, effect: Send) -> None:
        machine = self.machines.get(effect.peer)
        letter = effect.message
        if machine and isinstance(letter, Letter) and not self._apart(who, effect.peer):
            effects = machine.receive(who, letter.body, self.now)
            self._perform(effect.peer, effects)

    def _spread(self, author: PeerId, posting: Posting, to: PeerId) -> None:
        if to == author:
            return
        delay_s = self._pick(self.weather.gossip_s)
        while self.random.random() < self.weather.loss:
            delay_s += 0.5
        self.after(delay_s, lambda: self._learn(author, posting, to))

    def _learn(self, author: PeerId, posting: Posting, to: PeerId) -> None:
        key = (to, author, posting.stage)
        if self._apart(author, to):
            return
        if to in self.machines and self._newest.get(key, -1) < posting.issued_ms:
            self._newest[key] = posting.issued_ms
            effects = self.machines[to].receive_posting(author, posting, self.now)
            self._perform(to, effects)

    def _hold(self, who: PeerId, stage: Stage) -> None:
        self._holds(who, self.members[who].held | {stage})

    def _release(self, who: PeerId, stage: Stage) -> None:
        if who in self.members:
            self._holds(who, self.members[who].held - {stage})

    def _holds(self, who: PeerId, stages: frozenset[Stage]) -> None:
        machine = self.machines[who]
        seats = {"home": machine.seats.home.advertised, "second": machine.seats.second.advertised}
        self._change(replace(self.members[who], held=stages, **seats))

    def _change(self, changed: Member) -> None:
        self.members[changed.peer] = changed
        for other in list(self.machines):
            self.after(self._pick(self.weather.gossip_s), lambda o=other: self._meet(o, changed))

    def _serve(self, who: PeerId, stage: Stage) -> None:
        machine = self.machines.get(who)
        if machine and stage in machine.seats.stages:
            self.served.setdefault(who, {})[stage] = machine.seats.seat_of(stage)
            self._perform(who, machine.serving(stage, self.now))
            self._holds(who, self.members[who].held)

    def _arm(self, who: PeerId) -> None:
        machine = self.machines.get(who)
        if machine is None:
            return
        due = max(machine.next_deadline(self.now), self.now)
        if self._alarm.get(who) != due and due < float("inf"):
            self._alarm[who] = due
            self.after(due - self.now, lambda: self._ring(who, due))

    def _ring(self, who: PeerId, due: float) -> None:
        if self._alarm.get(who) == due and who in self.machines:
            del self._alarm[who]
            self._perform(who, self.machines[who].tick(self.now))

    def _apart(self, one: PeerId, other: PeerId) -> bool:
        return bool(self._part) and (one in self._part) != (other in self._part)

    def _pick(self, bounds: tuple[float, float]) -> float:
        return self.random.uniform(*bounds)


def swarm(
    speeds: Iterable[float],
    stages: int,
    seed: int,
    weather: Weather = CALM,
    design: Design = FULL,
    *,
    within_s: float = 0.0,
    measured_s: float = 1000.0,
) -> World:
    """Return a world in which machines of these speeds, of which 1 is usual, join within some
    seconds."""
    world = World(manifest(stages), seed, weather, design)
    for number, speed in enumerate(speeds):
        who = member(seed * 100 + number, speed * 1e9, measured_s=measured_s)
        world.join(who, at=world.random.uniform(0, within_s))
    return world


def settled(seed: int, design: Design) -> World:
    """Return eleven unequal peers at work on three stages, some time after their last move."""
    world = World(manifest(3), seed, STORMY, design)
    for number in range(11):
        speed = world.random.lognormvariate(0, 0.5) * 1e9
        who = member(seed * 100 + number, speed, measured_s=1000.0)
        world.join(who, at=world.random.uniform(0, 2))
    world.run(MEASURED_S + 100)
    return world
