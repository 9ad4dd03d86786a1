"""Heartbeats, silence and links of the chaos world, from which each volunteer makes its view.

It works like a node's membership, with the same contacts: it sends the state of its
seat every second, judges the silence of others, and dials peers without a link.
A seat's view consists of the linked peers that are not held for dead.
"""

from functools import partial
from typing import Final

from client.lab.simulate.agenda import Range
from client.lab.simulate.chaos.swarm import ChaosSwarm
from client.lab.simulate.chaos.volunteer import Volunteer
from protocol.ids import PeerId, short
from protocol.wire.parts import SeatStatus

PULSE_S: Final = 0.5
"""Interval at which a node checks its deadlines, in its own seconds."""
PULSES_PER_BEAT: Final = 2
DIAL_S: Range = (0.01, 0.2)
DIAL_CHANCE: Final = 0.5


class Beats:
    """See the module's docstring."""

    def __init__(self, swarm: ChaosSwarm) -> None:
        self._swarm, self._network = swarm, swarm.network
        self._network.on_closed = self._closed
        self.rate = 1.0
        """Microbatches per second that everybody says it computes."""

    # --- saying ----------------------------------------------------------------------------

    def say(self, volunteer: Volunteer, *, near_only: bool = False) -> None:
        """Send our seat to all linked volunteers, or to those of our stage and beside."""
        now = self._swarm.now_of(volunteer)
        volunteer.heartbeats += 1
        seat = volunteer.seat
        status = volunteer.returning if seat is None else seat.status(self.rate)
        me = volunteer.peer
        if status is None:
            volunteer.statuses.pop(me, None)
        else:
            volunteer.statuses[me] = status
        volunteer.contacts.said(volunteer.heartbeats, now)
        number, echoes = volunteer.heartbeats, dict(volunteer.echoes)
        known = volunteer.statuses.items()
        near = {peer for peer, other in known if abs(other.stage - volunteer.stage) <= 1}
        self._network.send_beat(
            volunteer,
            lambda other: self._hear(
                other,
                me,
                number,
                self._swarm.beat_told(volunteer, status),
                echoes.get(other.peer, -1),
            ),
            near if near_only else volunteer.links,
        )
        self._show(volunteer)

    def second(self, volunteer: Volunteer) -> None:
        """A node's work of every second."""
        for peer in volunteer.contacts.tick(self._swarm.now_of(volunteer)):
            self._silent(volunteer, peer)
        self.say(volunteer)
        self._dial(volunteer)

    # --- hearing ---------------------------------------------------------------------------

    def _hear(
        self,
        volunteer: Volunteer,
        of: PeerId,
        number: int,
        status: SeatStatus | None,
        echo: int,
    ) -> None:
        if number <= volunteer.heard.get(of, -1):
            return
        volunteer.heard[of] = number
        volunteer.echoes[of] = number
        volunteer.silent.discard(of)
        now = self._swarm.now_of(volunteer)
        serving = [status.stage] if status and status.state == "serving" else []
        volunteer.contacts.heard(of, serving, echo, now)
        if status is None:
            volunteer.statuses.pop(of, None)
        else:
            volunteer.statuses[of] = status
        self._show(volunteer)

    def _silent(self, volunteer: Volunteer, peer: PeerId) -> None:
        """A peer is given up."""
        self._swarm.note(volunteer, f"has not heard {short(peer)} for too long")
        volunteer.statuses.pop(peer, None)
        volunteer.silent.add(peer)
        if not self._swarm.config.links_survive_silence:
            self._unlinked(volunteer, peer)
            volunteer.contacts.closed(peer, by_peer=False, now=self._swarm.now_of(volunteer))
            self._network.close(volunteer, peer)
        self._show(volunteer)

    def _closed(self, volunteer: Volunteer, by: PeerId, dies: bool) -> None:
        """The other end has closed the link, or its process has ended."""
        volunteer.links.pop(by, None)
        self._unlinked(volunteer, by)
        volunteer.contacts.closed(by, by_peer=dies, now=self._swarm.now_of(volunteer))
        self._show(volunteer)

    @staticmethod
    def _unlinked(volunteer: Volunteer, peer: PeerId) -> None:
        volunteer.heard.pop(peer, None)
        volunteer.echoes.pop(peer, None)
        volunteer.silent.discard(peer)
        volunteer.statuses.pop(peer, None)

    # --- links -----------------------------------------------------------------------------

    def _dial(self, volunteer: Volunteer) -> None:
        for other in list(self._swarm.volunteers.values()):
            linked = other is volunteer or other.peer in volunteer.links
            if not linked and other.alive and self._swarm.random.random() < DIAL_CHANCE:
                self._swarm.agenda.sometime(DIAL_S, partial(self.link, volunteer, other))

    def link(self, one: Volunteer, two: Volunteer) -> None:
        """Make a link if both can; an older one that an end still holds is closed by it."""
        can = one.running and two.running and self._network.reaches(one.peer, two.peer)
        can = can and not one.cuts_off(two.peer) and not two.cuts_off(one.peer)
        if not can or (two.peer in one.links and one.peer in two.links):
            return
        for end, other in ((one, two), (two, one)):
            if other.peer in end.links:
                self._closed(end, other.peer, False)
        self._network.connect(one, two)
        for end, other in ((one, two), (two, one)):
            end.heard.pop(other.peer, None)
            end.echoes.pop(other.peer, None)
            end.contacts.linked(other.peer, self._swarm.now_of(end))
        self.say(one)
        self.say(two)
        self._swarm.linked(one, two.peer)
        self._swarm.linked(two, one.peer)

    def _show(self, volunteer: Volunteer) -> None:
        """Give the seat a new view if the view has changed."""
        seen = (dict(volunteer.statuses), volunteer.seen_live())
        if seen != volunteer.shown:
            volunteer.shown = seen
            self._swarm.show(volunteer)
