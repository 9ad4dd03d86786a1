"""Matching: what one peer runs. Its volunteer, plus a steward for each stage it decides for now.

Routes what comes in, takes vacant stewardships over and gives them up, and reports the gang start.
Messages between its own parts never leave it. Decides no match by itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

from protocol.effects import Explain, Penalise, Publish, SendSigned
from protocol.errors import RemoteProtocolError
from protocol.ids import PeerId, Stage, short
from protocol.manifest import Manifest
from protocol.matching import bodies, stewards
from protocol.matching.board import Board, Notice, outranks
from protocol.matching.bodies import QUIET, Mandate
from protocol.matching.design import FULL, Design
from protocol.matching.effects import Effect, GangStart
from protocol.matching.mover import Mover
from protocol.matching.outlook import Outlook
from protocol.matching.population import Member, Population
from protocol.matching.second import SecondSeat
from protocol.matching.steward import Steward
from protocol.matching.timing import BEACON_S, LISTEN_S, MOVE_REST_S, SUCCESSION_STEP_S
from protocol.matching.volunteer import State, Volunteer

INFINITY = float("inf")


class Matching:
    """The composition. Every input returns effects; ``now`` is monotonic seconds.

    Args:
        me: our peer id.
        manifest: stage costs and redundancy.
        wall_offset_s: Unix time minus the monotonic clock.
        design: what an ablation leaves out.
        board: for a simulation whose peers all hear the same: one for all of them.
    """

    def __init__(
        self,
        me: PeerId,
        manifest: Manifest,
        wall_offset_s: float,
        *,
        design: Design = FULL,
        board: Board | None = None,
    ) -> None:
        self._manifest = manifest
        population = Population((), manifest.stages, manifest.policy.redundancy, design)
        board = Board(manifest.stage_count) if board is None else board
        self._outlook = Outlook(me, population, board, wall_offset_s)
        self._volunteer = Volunteer(self._outlook)
        self._second = SecondSeat(self._outlook)
        self._mover = Mover(self._outlook)
        self._stewards: dict[Stage, Steward] = {}
        self._vacant_since: dict[Stage, float] = {}
        self._started = False
        self._last_waiting = ""
        self._reported_revision = -1
        self._last_home: Stage | None = None

    # --- what the driver and the interface read ----------------------------------------------

    @property
    def state(self) -> State:
        """Where our volunteer is."""
        return self._volunteer.state

    @property
    def stage(self) -> Stage | None:
        """The stage we fetch or serve."""
        return self._volunteer.stage

    @property
    def tentative_stage(self) -> Stage | None:
        """The stage that has a place for us, final or not."""
        bid = self._volunteer.bid
        return bid.stage if bid and self.state is not State.PROPOSED else None

    @property
    def stages(self) -> frozenset[Stage]:
        """Every stage we fetch or serve, with whatever seat."""
        return frozenset(self._volunteer.stages + self._second.stages)

    def seat_of(self, stage: Stage) -> int:
        """Return the seat that holds a stage: 0 is home, 1 the second."""
        return int(self._second.owns(stage))

    @property
    def home(self) -> Stage | None:
        """The stage that our first seat serves or fetches; during a move still the old one."""
        leaving = self._volunteer.leaving
        return leaving.stage if leaving else self._volunteer.stage

    @property
    def second(self) -> Stage | None:
        """The stage that our second seat serves or fetches; during a change still the old one."""
        return self._second.leaving if self._second.leaving is not None else self._second.stage

    @property
    def counters(self) -> Mapping[str, int]:
        """What was refused, by reason."""
        return self._outlook.counters

    @property
    def stewardships(self) -> Mapping[Stage, Steward]:
        """The stages we decide for (read only)."""
        return self._stewards

    def postings(self, now: float) -> Mapping[Stage, Notice]:
        """Return the posting that counts for every stage that has one."""
        return self._outlook.board.notices(now)

    # --- inputs -------------------------------------------------------------------------------

    def set_wall_offset(self, offset_s: float) -> None:
        """Correct the wall clock (Unix time minus monotonic)."""
        self._outlook.wall_offset_s = offset_s

    def update_members(self, members: Iterable[Member], now: float) -> list[Effect]:
        """Take the membership view: every live member, ourselves included."""
        known = self._outlook.population.members
        present = {member.peer: member for member in members}
        changes: dict[PeerId, Member | None] = {
            peer: member for peer, member in present.items() if known.get(peer) != member
        }
        changes.update(dict.fromkeys(known.keys() - present.keys()))
        if not changes:
            return []
        return self.update_population(self._outlook.population.evolve(changes), now)

    def update_population(self, population: Population, now: float) -> list[Effect]:
        """Take the membership view as a population, evolved from the last one or shared."""
        self._outlook.population = population
        self._outlook.board.observe(population, self._outlook.wall_s(now))
        found: list[Effect] = []
        for steward in self._stewards.values():
            found += steward.update(now)
        return self._route(found + self._look(now), now)

    def board_changed(self, now: float) -> list[Effect]:
        """Look at a shared board that somebody else has pinned a posting to."""
        return self._route(self._look(now), now)

    def receive_signed(self, sender: PeerId, kind: str, body: bytes, now: float) -> list[Effect]:
        """Take a signed message; ``sender`` is the signer, whose signature the driver checked."""
        return self._route(self._dispatch(sender, kind, body, now), now)

    def receive_record(self, author: PeerId, kind: str, body: bytes, now: float) -> list[Effect]:
        """Take a signed record spread by the membership: a posting."""
        return self._route(self._read(author, kind, body, now), now)

    def set_unable(self, stages: Mapping[Stage, str], now: float) -> list[Effect]:
        """Name the stages this machine cannot serve, with the reason in words."""
        return self._route(self._volunteer.set_unable(stages, now), now)

    def serving(self, stage: Stage, now: float) -> list[Effect]:
        """The training side serves an assigned stage (LocalProtocolError: not assigned)."""
        if self._second.owns(stage):
            return self._route(self._second.serving(stage), now)
        return self._route(self._volunteer.serving(stage, now), now)

    def lost(self, stage: Stage, reason: str, now: float) -> list[Effect]:
        """The training side lost an assigned stage (LocalProtocolError: not assigned)."""
        if self._second.owns(stage):
            self._second.lost(stage)
            return self._route([Explain("matching", f"lost stage {stage}: {reason}")], now)
        return self._route(self._volunteer.lost(stage, reason, now), now)

    def leave(self, now: float) -> list[Effect]:
        """Withdraw from everything, for good."""
        self._stewards.clear()
        return self._route(self._volunteer.leave(now) + self._second.leave(), now)

    def tick(self, now: float) -> list[Effect]:
        """Do what is due."""
        self._outlook.board.observe(self._outlook.population, self._outlook.wall_s(now))
        found = self._watch_stewardships(now)
        for steward in list(self._stewards.values()):
            found += steward.tick(now)
        found += self._volunteer.tick(now)
        design = self._outlook.population.design
        if design.epochs:
            rested_at = self._volunteer.moved_at + MOVE_REST_S
            found += self._mover.tick(self._settled_home, rested_at, now)
        if design.dual_homing:
            found += self._second.tick(self._served_home, now)
        return self._route(found, now)

    def next_deadline(self, now: float) -> float:
        """Return when ``tick`` has something to do, monotonic seconds."""
        own = (steward.next_deadline() for steward in self._stewards.values())
        seats = (
            self._volunteer.next_deadline(),
            self._second.next_deadline(),
            self._mover.next_deadline(),
        )
        return min(*seats, self._next_watch(now), *own)

    # --- routing ------------------------------------------------------------------------------

    def _dispatch(self, sender: PeerId, kind: str, encoded: bytes, now: float) -> list[Effect]:
        body = self._parse(sender, kind, encoded, now)
        if isinstance(body, bodies.ToVolunteer):
            return self._volunteer.receive(sender, body, now)
        if isinstance(body, bodies.Permit):
            return self._permitted(sender, body, now)
        if isinstance(body, bodies.ToSteward | bodies.ToDesk):
            steward = self._stewards.get(bodies.stage_of(body))
            if steward is None:
                self._outlook.counters["matching-not-steward"] += 1
                return []
            if isinstance(body, bodies.ToDesk):
                return list(steward.desk.receive(sender, body, steward.mandate, now))
            return list(steward.receive(sender, body, now))
        return [body] if isinstance(body, Penalise) else self._misuse(sender, kind)

    def _permitted(self, sender: PeerId, body: bodies.Permit, now: float) -> list[Effect]:
        """Both stages agree, or one says no."""
        move, found = self._mover.receive(sender, body, now)
        if move is None:
            return found
        reason = f"stage {move.to} has room, stage {move.home} consents"
        return found + self._volunteer.move_to(move.to, reason, now, current=False)

    def _read(self, author: PeerId, kind: str, encoded: bytes, now: float) -> list[Effect]:
        body = self._parse(author, kind, encoded, now)
        if isinstance(body, Penalise):
            return [body]
        if not isinstance(body, bodies.Posting):
            return self._misuse(author, kind)
        before = self._outlook.board.revision
        self._outlook.board.pin(author, body, now)
        return self._look(now) if self._outlook.board.revision != before else []

    def _parse(
        self, sender: PeerId, kind: str, encoded: bytes, now: float
    ) -> bodies.Direct | bodies.Posting | Penalise:
        """Return the body, or the penalty for one that breaks the rules."""
        try:
            body = bodies.decode_body(kind, encoded)
            if body.stage >= self._manifest.stage_count:
                raise RemoteProtocolError("matching-stage-unknown", penalty=20)
            if not bodies.is_fresh(body, self._outlook.wall_s(now)):
                raise RemoteProtocolError("matching-stale", penalty=1)
        except RemoteProtocolError as error:
            self._outlook.counters[error.reason] += 1
            return Penalise(sender, error.reason, error.penalty)
        return body

    def _misuse(self, sender: PeerId, kind: str) -> list[Effect]:
        """A record sent as a message or the other way round."""
        self._outlook.counters["matching-misuse"] += 1
        return [Penalise(sender, f"matching-misuse: {kind}", 10)]

    def _route(self, found: Iterable[Effect], now: float) -> list[Effect]:
        """Deliver what is for ourselves, pass the rest on, report the gang start."""
        out: list[Effect] = []
        queue = deque(found)
        while queue:
            effect = queue.popleft()
            if isinstance(effect, SendSigned) and effect.peer == self._outlook.me:
                queue.extend(self._dispatch(effect.peer, effect.kind, effect.body, now))
                continue
            out.append(effect)
            if isinstance(effect, Publish):
                queue.extend(self._read(self._outlook.me, effect.kind, effect.body, now))
        return out + self._follow_home(now) + self._report(now)

    def _follow_home(self, now: float) -> list[Effect]:
        """Tell the second seat when the first one has another stage."""
        home, design = self._served_home, self._outlook.population.design
        if home == self._last_home:
            return []
        self._last_home = home
        if design.epochs:
            self._mover.home_changed(home, now)
        return self._second.home_changed(home, now) if design.dual_homing else []

    @property
    def _settled_home(self) -> Stage | None:
        """Our home if we serve it and are not on our way to another one."""
        return None if self._volunteer.leaving else self._served_home

    @property
    def _served_home(self) -> Stage | None:
        serves = self.state is State.SERVING or self._volunteer.leaving
        return self.home if serves else None

    def _look(self, now: float) -> list[Effect]:
        """The outlook changed: step down where another counts more, let every part look."""
        for stage in list(self._stewards):
            self._step_down_if_outranked(stage, now)
        for steward in self._stewards.values():
            steward.look(now)
        self._second.look(self._served_home, now)
        self._mover.look(now)
        return self._volunteer.look(now)

    # --- stewardship ----------------------------------------------------------------------------

    def _step_down_if_outranked(self, stage: Stage, now: float) -> None:
        board, me = self._outlook.board, self._outlook.me
        mandate = self._stewards[stage].mandate
        notice = board.current(stage, now)
        if notice is None or notice.author == me:
            return
        if board.knows(me, stage, mandate) or not outranks((me, mandate), notice):
            del self._stewards[stage]

    def _watch_stewardships(self, now: float) -> list[Effect]:
        """Take over the stages that have been without a steward for as long as our turn takes."""
        found: list[Effect] = []
        if self._outlook.me not in self._outlook.population or self.state is State.LEFT:
            return found
        for stage, turn_at in self._turns(now).items():
            if now >= turn_at:
                found += self._take_over(stage, now)
        return found

    def _turns(self, now: float) -> dict[Stage, float]:
        """Return when we take each vacant stage over, if nobody does before."""
        vacant = self._outlook.board.vacant(now)
        if not vacant:
            self._vacant_since.clear()
            return {}
        beacon = stewards.beacon_at(self._outlook.wall_s(now))
        self._vacant_since = {stage: self._vacant_since.get(stage, now) for stage in vacant}
        turns = {}
        for stage, since in self._vacant_since.items():
            order = self._outlook.population.succession(stage, beacon)
            if self._outlook.me in order:
                wait = LISTEN_S + order.index(self._outlook.me) * SUCCESSION_STEP_S
                turns[stage] = since + wait
        return turns

    def _take_over(self, stage: Stage, now: float) -> list[Effect]:
        notice = self._outlook.board.predecessor(stage)
        beacon = stewards.beacon_at(self._outlook.wall_s(now))
        term = min(notice.posting.mandate.term + 1, bodies.MAX_TERM) if notice else 1
        mandate = Mandate(beacon, term)
        self._vacant_since.pop(stage, None)
        if stage in self._stewards:
            return list(self._stewards[stage].continue_as(mandate, now))
        steward = Steward(
            self._outlook, stage, mandate, epoch=notice.posting.epoch if notice else 0
        )
        self._stewards[stage] = steward
        words = f"{short(self._outlook.me)} is now steward of stage {stage}, term {term}"
        said = Explain("matching", words, "debug")
        return [said, *steward.start(now, successor=notice is not None)]

    def _next_watch(self, now: float) -> float:
        if self._outlook.me not in self._outlook.population or self.state is State.LEFT:
            return INFINITY
        wall_s = self._outlook.wall_s(now)
        next_beacon = now + BEACON_S - wall_s % BEACON_S
        turns = min(self._turns(now).values(), default=INFINITY)
        return min(turns, next_beacon, self._outlook.board.next_expiry(now))

    # --- the gang -------------------------------------------------------------------------------

    def _report(self, now: float) -> list[Effect]:
        """Say once when the pipeline can run, and what it waits for while it cannot."""
        if self._outlook.board.revision == self._reported_revision:
            return []
        self._reported_revision = self._outlook.board.revision
        notices = self._outlook.board.notices(now)
        uncovered = self._outlook.board.uncovered(now)
        complete = len(notices) == self._manifest.stage_count
        started = complete and all(
            n.posting.locked_replicas + n.posting.seconds for n in notices.values()
        )
        if started and not self._started:
            self._started = True
            self._last_waiting = ""
            replicas = tuple(notice.posting.copies for notice in notices.values())
            return [GangStart(replicas), Explain("matching", f"every stage is covered: {replicas}")]
        known_empty = all(s in notices and notices[s].posting.phase >= QUIET for s in uncovered)
        if uncovered and complete and known_empty:
            self._started = False
            return self._say_waiting(_waiting(uncovered))
        return []

    def _say_waiting(self, words: str) -> list[Effect]:
        if words == self._last_waiting:
            return []
        self._last_waiting = words
        return [Explain("matching", words, "warning")]


def _waiting(uncovered: list[Stage]) -> str:
    count = len(uncovered)
    names = ", ".join(str(stage) for stage in uncovered)
    noun, stages = ("volunteer", "stage") if count == 1 else ("volunteers", "stages")
    verb = "has" if count == 1 else "have"
    return f"waiting for {count} more {noun}: {stages} {names} {verb} none"
