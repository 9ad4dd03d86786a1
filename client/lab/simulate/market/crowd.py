"""The real machines: one ``Matching`` per volunteer, with messages, records and views between them.

State: the machines, the records that all of them read, the membership view (one for all, as old as
the world's detection delay), its next changes, every machine's next alarm, and counts of messages.
The ``Fleet`` fetches and serves the stages that the machines assign.

A change wakes only the machines that it can affect; so thousands fit one process.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import msgspec

from client.lab.simulate.market import setting as world
from client.lab.simulate.market.policies.policy import Market, Said
from client.lab.simulate.market.setting import manifest_of
from protocol.effects import Penalise, Publish, Send
from protocol.ids import PeerId, Stage, peer_id_from_key
from protocol.matching import stewards
from protocol.matching.board import Board, Notice
from protocol.matching.effects import Assign, Effect, Unassign
from protocol.matching.machine import Matching
from protocol.matching.member import Member
from protocol.matching.population import Population
from protocol.matching.seat import State
from protocol.matching.timing import MEASURED_S
from protocol.wire.messages import Letter, encode_message

WALL_S = 1_700_000_000.0
"""Unix time of the simulation's beginning."""
BOARD_S = 0.25
"""Interval at which records are passed on."""


class Crowd:
    """A policy in which every volunteer decides for itself."""

    def __init__(self, market: Market) -> None:
        nature, agenda, fleet = market.nature, market.agenda, market.fleet
        self.said = Said()
        self.population = Population((), nature.costs, 2)
        """The view of everybody."""
        self._nature, self._agenda, self._fleet = nature, agenda, fleet
        self._manifest = manifest_of(nature.setting)
        self._peers = [_peer(number) for number in range(nature.count)]
        self._number_of = {peer: number for number, peer in enumerate(self._peers)}
        self._machines: dict[int, Matching] = {}
        self._members: dict[int, Member] = {}
        self._changes: dict[PeerId, Member | None] = {}
        self._seen: dict[int, Population] = {}
        self._alarms: dict[int, float] = {}
        self._measured: set[int] = set()
        self._board = Board(nature.setting.stages)
        self._revision = -1
        self._empty: tuple[Stage, ...] = ()
        self._restless: set[int] = set()
        self._waits: dict[int, Stage] = {}
        self._waiting: dict[Stage, set[int]] = {}
        """Who waits for the word of a stage's steward: it matters to them alone."""
        self._notices: dict[Stage, Notice] = {}
        agenda.every(world.VIEW_S, self._hand_on_view)
        agenda.every(BOARD_S, self._hand_on_records)

    # --- events ---------------------------------------------------------------------------

    def joined(self, volunteer: int) -> None:
        """Start a machine; it and the others see each other with the next view."""
        self._machines[volunteer] = Matching(
            self._peers[volunteer],
            self._manifest,
            WALL_S,
            board=self._board,
        )
        self._restless.add(volunteer)
        self._note(volunteer, self._newcomer(volunteer))

    def departed(self, volunteer: int) -> None:
        """Tell all volunteers that one is gone."""
        self._forget(volunteer)
        self._members.pop(volunteer, None)
        self._changes[self._peers[volunteer]] = None

    def loaded(self, volunteer: int, stage: int) -> None:
        """Serve a fetched stage, if the machine still wants it."""
        machine = self._alive(volunteer)
        if machine is None or stage not in machine.seats.stages:
            return
        self._fleet.serve(volunteer, stage)
        self._perform(volunteer, machine.serving(Stage(stage), self._agenda.now))
        if volunteer not in self._measured:
            self._measured.add(volunteer)
            self._agenda.after(MEASURED_S, lambda: self._believe_claims(volunteer))

    # --- views and records ----------------------------------------------------------------------

    def _hand_on_view(self) -> None:
        """Make the next view and show it immediately to the machines that it affects."""
        if not self._changes:
            return
        self.population = self.population.evolve(self._changes)
        self._changes = {}
        self._board.observe(self.population, WALL_S + self._agenda.now)
        for volunteer in self._concerned():
            self._show(volunteer)

    def _hand_on_records(self) -> None:
        """Wake the machines that new records may affect."""
        if self._board.revision == self._revision:
            return
        for volunteer in self._concerned():
            machine = self._alive(volunteer)
            if machine is not None and not self._show(volunteer):
                self._perform(volunteer, machine.records_changed(self._agenda.now))
        self._revision = self._board.revision

    def _concerned(self) -> list[int]:
        """Return the machines that must see a change now; others see it when they next act.

        A machine with a final place and without a stage to decide for must see it in two cases
        only: a stage without a steward, and a stage without replicas.
        """
        board, now = self._board, self._agenda.now
        found = set(self._restless)
        notices = board.notices(now)
        for stage, notice in notices.items():
            known = self._notices.get(stage)
            if known is not notice:
                if known is None or _matters(known) != _matters(notice):
                    found |= self._waiting.get(stage, set())
                wanted = self._number_of.get(PeerId(notice.posting.wanted))
                found.update(() if wanted is None else (wanted,))
        self._notices = dict(notices)
        beacon = stewards.beacon_at(WALL_S + now)
        for stage in board.facts(now).vacant:
            found.update(self._numbers(self.population.candidates(stage, beacon)))
        empty, self._empty = self._empty, board.facts(now).empty
        return list(self._machines) if set(self._empty) - set(empty) else sorted(found)

    def _numbers(self, peers: Iterable[PeerId]) -> Iterator[int]:
        return (self._number_of[peer] for peer in peers)

    def _show(self, volunteer: int) -> bool:
        """Bring a machine's view up to date; tell whether it was not."""
        machine = self._alive(volunteer)
        if machine is None or self._seen.get(volunteer) is self.population:
            return False
        self._seen[volunteer] = self.population
        self._perform(volunteer, machine.update_population(self.population, self._agenda.now))
        return True

    def _publish(self, record: Publish) -> None:
        """Count a record; its author has added it to the board."""
        size_bytes = len(msgspec.msgpack.encode(record.said)) + world.ENVELOPE_BYTES
        self.said.records += len(self._machines)
        self.said.record_bytes += len(self._machines) * size_bytes

    # --- letters and effects ----------------------------------------------------------------------

    def _perform(self, volunteer: int, effects: Sequence[Effect]) -> None:
        """Perform a machine's effects, then read its stages and its next alarm."""
        for effect in effects:
            match effect:
                case Send(peer, Letter() as letter):
                    self._send(volunteer, peer, letter)
                case Publish():
                    self._publish(effect)
                case Assign():
                    self._assign(volunteer, int(effect.stage))
                case Unassign():
                    self._fleet.drop(volunteer, int(effect.stage))
                case Penalise():
                    self.said.penalties += 1
                case _:
                    pass  # explanations
        self._look_after(volunteer)

    def _send(self, volunteer: int, to: PeerId, letter: Letter) -> None:
        self.said.letters += 1
        self.said.letter_bytes += len(encode_message(letter)) + world.ENVELOPE_BYTES
        if self._agenda.random.random() >= world.MESSAGE_LOSS:
            receive = partial(self._receive, volunteer, to, letter)
            self._agenda.sometime(world.MESSAGE_DELAY_S, receive)

    def _receive(self, sender: int, to: PeerId, letter: Letter) -> None:
        volunteer = self._number_of[to]
        machine = self._alive(volunteer)
        if machine is not None:
            self._show(volunteer)
            author, now = self._peers[sender], self._agenda.now
            found = machine.receive(author, letter.body, now)
            self._perform(volunteer, found)

    def _assign(self, volunteer: int, stage: int) -> None:
        if stage in self._fleet.serving(volunteer):
            self._agenda.after(0.0, lambda: self.loaded(volunteer, stage))
        else:
            self._fleet.fetch(volunteer, stage)

    # --- members --------------------------------------------------------------------------------

    def _newcomer(self, volunteer: int) -> Member:
        nature = self._nature
        link = float(nature.bytes_per_s[volunteer])
        return Member(
            peer=self._peers[volunteer],
            joined_at=WALL_S + self._agenda.now,
            flops=float(nature.flops[volunteer]),
            uplink_bytes_per_s=link,
            downlink_bytes_per_s=link,
            memory_bytes=4 * nature.costs[0].memory_bytes,
        )

    def _look_after(self, volunteer: int) -> None:
        """Note a machine's stages and set its alarm."""
        machine = self._alive(volunteer)
        if machine is None:
            return
        seats, known = machine.seats, self._members[volunteer]
        held, home, second = seats.stages, seats.home.advertised, seats.second.advertised
        fetching = held - frozenset(map(Stage, self._fleet.serving(volunteer)))
        changed = replace(known, held=held, home=home, second=second, fetching=fetching)
        if changed != known:
            self._note(volunteer, changed)
        bid = seats.home.bid
        self._note_wait(volunteer, None if held or bid is None else bid.stage)
        if seats.home.state is not State.FREE and not machine.stewardships.held:
            self._restless.discard(volunteer)
        else:
            self._restless.add(volunteer)
        self._arm(volunteer, machine)

    def _note_wait(self, volunteer: int, stage: Stage | None) -> None:
        before = self._waits.pop(volunteer, None)
        if before is not None:
            self._waiting[before].discard(volunteer)
        if stage is not None:
            self._waits[volunteer] = stage
            self._waiting.setdefault(stage, set()).add(volunteer)

    def _note(self, volunteer: int, member: Member) -> None:
        self._members[volunteer] = member
        self._changes[member.peer] = member

    def _believe_claims(self, volunteer: int) -> None:
        """Partners have measured a volunteer for long enough."""
        if volunteer in self._members:
            self._note(volunteer, replace(self._members[volunteer], measured_s=MEASURED_S))

    def _arm(self, volunteer: int, machine: Matching) -> None:
        now = self._agenda.now
        due = max(machine.next_deadline(now), now)
        if self._alarms.get(volunteer) != due and due < float("inf"):
            self._alarms[volunteer] = due
            self._agenda.at(due, partial(self._ring, volunteer, due))

    def _ring(self, volunteer: int, due: float) -> None:
        machine = self._alive(volunteer)
        if machine is not None and self._alarms.get(volunteer) == due:
            del self._alarms[volunteer]
            self._show(volunteer)
            self._perform(volunteer, machine.tick(self._agenda.now))

    def _alive(self, volunteer: int) -> Matching | None:
        """Return the machine of a present volunteer; dead ones neither send nor receive."""
        if self._fleet.present(volunteer):
            return self._machines.get(volunteer)
        if volunteer in self._machines:
            self._forget(volunteer)
        return None

    def _forget(self, volunteer: int) -> None:
        self._machines.pop(volunteer, None)
        self._seen.pop(volunteer, None)
        self._alarms.pop(volunteer, None)
        self._restless.discard(volunteer)
        self._note_wait(volunteer, None)


def _matters(notice: Notice) -> tuple[object, ...]:
    """Return what matters of a posting to those who wait for their place."""
    return (notice.source, notice.posting.phase, notice.posting.cutoff)


def _peer(number: int) -> PeerId:
    return peer_id_from_key(number.to_bytes(32, "big"))
