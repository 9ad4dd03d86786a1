"""Matching, as one peer runs it: its seats, and a steward for each stage it decides for.

Checks and routes inputs, and says whether the pipeline can run. Messages between its own parts
never leave it. It makes no match by itself.
"""

from collections import deque
from collections.abc import Iterable, Mapping

from protocol.effects import Explain, Penalise, Publish, Send
from protocol.ids import PeerId, Stage
from protocol.manifest import Manifest
from protocol.matching import bodies
from protocol.matching.board import Board
from protocol.matching.bodies import Posting
from protocol.matching.context import Context
from protocol.matching.effects import Effect
from protocol.matching.gain import Change, paying
from protocol.matching.member import Member
from protocol.matching.population import Population, of_nobody
from protocol.matching.seats import Seats
from protocol.matching.stewards import beacon_at
from protocol.matching.stewardships import Stewardships
from protocol.wire.letters import Body, ToSteward, ToVolunteer
from protocol.wire.messages import Letter


class Matching:
    """The composition. Every input returns effects; ``now`` is monotonic seconds.

    Args:
        me: our peer id.
        manifest: stage costs and policy.
        wall_offset_s: Unix time minus the monotonic clock.
        board: shared by simulated peers with equal inputs; None: our own.
    """

    def __init__(
        self,
        me: PeerId,
        manifest: Manifest,
        wall_offset_s: float,
        *,
        board: Board | None = None,
    ) -> None:
        self._stage_count = manifest.stage_count
        self.context = Context(
            me,
            of_nobody(manifest),
            Board(manifest.stage_count) if board is None else board,
            wall_offset_s,
        )
        self.seats = Seats(self.context)
        self.stewardships = Stewardships(self.context)
        self._started = False
        self.waits_for = ""
        """The reason why the pipeline cannot run, in words; empty while it can."""

    def may_speak(self, peer: PeerId, stage: Stage, now: float) -> bool:
        """Tell whether ``peer`` is, at ``now``, a candidate for the stewardship of ``stage``."""
        beacon = beacon_at(self.context.wall_s(now))
        return peer in self.context.population.candidates(stage, beacon)

    def blocking_moves(self) -> list[Change]:
        """Return the changes to the neediest stage that would pay; empty in a stable matching."""
        population = self.context.population
        return paying(population, population.supply.neediest(1)[0])

    # --- inputs -------------------------------------------------------------------------------

    def update_members(self, members: Iterable[Member], now: float) -> list[Effect]:
        """Take the membership view: every live member, including ourselves."""
        known = self.context.population.members
        present = {member.peer: member for member in members}
        changes: dict[PeerId, Member | None] = {
            peer: member for peer, member in present.items() if known.get(peer) != member
        }
        changes.update(dict.fromkeys(known.keys() - present.keys()))
        if not changes:
            return []
        return self.update_population(self.context.population.evolve(changes), now)

    def update_population(self, population: Population, now: float) -> list[Effect]:
        """Take the membership view as a population, evolved from the last one or shared."""
        self.context.population = population
        self.context.board.observe(population, self.context.wall_s(now))
        return self._route(self.stewardships.update(now) + self._look(now), now)

    def records_changed(self, now: float) -> list[Effect]:
        """Look at the shared state again after another peer has added a record to it."""
        return self._route(self._look(now), now)

    def receive(self, sender: PeerId, body: ToSteward | ToVolunteer, now: float) -> list[Effect]:
        """Take a letter of the peer at the other end of the link."""
        return self._route(self._dispatch(sender, body, now), now)

    def receive_posting(self, author: PeerId, posting: Posting, now: float) -> list[Effect]:
        """Take a posting, a verified record spread by the membership."""
        return self._route(self._read(author, posting, now), now)

    def set_unable(self, stages: Mapping[Stage, str], now: float) -> list[Effect]:
        """Set the stages that this machine cannot serve, each with its reason in words."""
        self.context.unable = dict(stages)
        return self._route(self.seats.look(now), now)

    def serving(self, stage: Stage, now: float) -> list[Effect]:
        """Note that the training side serves an assigned stage (else LocalProtocolError)."""
        return self._route(self.seats.serving(stage, now), now)

    def lost(self, stage: Stage, reason: str, now: float) -> list[Effect]:
        """Note that the training side lost an assigned stage.

        Raises:
            LocalProtocolError: the stage is not assigned.
        """
        return self._route(self.seats.lost(stage, reason, now), now)

    def leave(self, now: float) -> list[Effect]:
        """Withdraw from all stages and end all stewardships, for good."""
        self.stewardships.close()
        return self._route(self.seats.leave(now), now)

    def tick(self, now: float) -> list[Effect]:
        """Act on every deadline that has passed."""
        self.context.board.observe(self.context.population, self.context.wall_s(now))
        return self._route(self.stewardships.tick(now) + self.seats.tick(now), now)

    def next_deadline(self, now: float) -> float:
        """Return when ``tick`` has something to do, monotonic seconds."""
        return min(self.seats.next_deadline(), self.stewardships.next_deadline(now))

    # --- routing ------------------------------------------------------------------------------

    def _dispatch(self, sender: PeerId, body: ToSteward | ToVolunteer, now: float) -> list[Effect]:
        """Pass a letter to the seat, or to our steward of the stage, that it is for."""
        if refused := self._refused(sender, body, now):
            return refused
        if isinstance(body, ToVolunteer):
            return self.seats.receive(sender, body, now)
        steward = self.stewardships.held.get(body.stage)
        return [] if steward is None else list(steward.receive(sender, body, now))

    def _read(self, author: PeerId, posting: Posting, now: float) -> list[Effect]:
        if refused := self._refused(author, posting, now):
            return refused
        before = self.context.board.revision
        self.context.board.pin(author, posting, now)
        return self._look(now) if self.context.board.revision != before else []

    def _refused(self, author: PeerId, body: Body, now: float) -> list[Effect]:
        """Return the penalty for what no honest peer says."""
        wall_s = self.context.wall_s(now)
        if body.stage >= self._stage_count:
            return [Penalise(author, "matching-stage-unknown", 20)]
        # the permitted authors depend on the beacon, so a liar must not be able to choose it
        chosen = isinstance(body, Posting) and abs(body.mandate.beacon - beacon_at(wall_s)) > 1
        stale = chosen or not bodies.is_fresh(body, wall_s)
        return [Penalise(author, "matching-stale", 1)] if stale else []

    def _route(self, found: Iterable[Effect], now: float) -> list[Effect]:
        """Deliver messages to ourselves, return all other effects and the state of the pipeline."""
        out: list[Effect] = []
        queue = deque(found)
        while queue or (queue := deque(self.seats.follow_home(now))):
            effect = queue.popleft()
            match effect:
                case Send(peer, Letter(body)) if peer == self.context.me:
                    queue.extend(self._dispatch(peer, body, now))
                    continue
            out.append(effect)
            if isinstance(effect, Publish) and isinstance(effect.said, Posting):
                queue.extend(self._read(self.context.me, effect.said, now))
        return out + self._report(now)

    def _report(self, now: float) -> list[Effect]:
        """Say once that the pipeline can run, and until then why it cannot."""
        facts = self.context.board.facts(now)
        if facts.covered and not self._started:
            self._started, self.waits_for = True, ""
            replicas = ", ".join(map(str, facts.covered))
            words = f"every stage is covered; replicas by stage: {replicas}"
            return [Explain("matching", words, decision="settled")]
        if not (facts.empty and facts.known_empty):
            return []
        self._started, before = False, self.waits_for
        self.waits_for = words = _wait_for(facts.empty)
        return [] if words == before else [Explain("matching", words, "warning")]

    def _look(self, now: float) -> list[Effect]:
        """Let every part look at the changed context."""
        self.stewardships.look(now)
        return self.seats.look(now)


def _wait_for(uncovered: tuple[Stage, ...]) -> str:
    count, names = len(uncovered), ", ".join(str(stage) for stage in uncovered)
    noun, stages = ("volunteer", "stage") if count == 1 else ("volunteers", "stages")
    verb = "has" if count == 1 else "have"
    return f"waiting for {count} more {noun}: {stages} {names} {verb} none"
