"""Links between volunteers, and the faults of links.

A link has two ends, each of which holds it until it closes it or hears that the other one did.
Messages arrive later, per lane in order, unless a *trick* is played on one: it is lost, doubled,
late or ahead of earlier ones. Between the parts of a split network nothing arrives; messages in
flight wait for healing (as TCP resends them) or are lost.
"""

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

from client.lab.simulate.agenda import Action, Agenda, Range
from client.lab.simulate.chaos.volunteer import Link, Volunteer
from protocol.ids import PeerId

TrickKind = Literal["lose", "double", "late", "ahead"]
DELAY_S: Range = (0.001, 0.05)
LATE_S: Range = (0.1, 8.0)
CLOSE_S: Range = (0.0, 0.05)


@dataclass(slots=True)
class Trick:
    """A fault of the next message of a kind, from any sender."""

    kind: TrickKind
    message: str
    """Name of the message's type; empty: any."""
    played: Action
    """Called once it was played."""


@dataclass(slots=True)
class Storm:
    """Between two volunteers every other message is lost for a while."""

    between: frozenset[PeerId]
    until: float


class Network:
    """See the module's docstring; it counts what it carries, by name of message."""

    def __init__(self, agenda: Agenda, volunteers: Mapping[PeerId, Volunteer]) -> None:
        self._agenda, self._volunteers = agenda, volunteers
        self._side: dict[PeerId, int] = {}
        self._lossy = False
        self._tricks: list[Trick] = []
        self._storms: list[Storm] = []
        self.on_closed: Callable[[Volunteer, PeerId, bool], None]
        """An end hears that the other one has closed the link, or that its process has ended."""
        self.carried = 0
        """Messages sent; heartbeats, other upkeep of the swarm and the liar's not counted."""

    # --- links -----------------------------------------------------------------------------

    def reaches(self, one: PeerId, two: PeerId) -> bool:
        """Whether packets travel between two volunteers."""
        side = self._side
        return not side or side.get(one, 0) == side.get(two, 0)

    def connect(self, one: Volunteer, two: Volunteer) -> Link:
        """Make a link; both ends hold it at once."""
        link = Link(one.peer, two.peer)
        one.links[two.peer] = two.links[one.peer] = link
        return link

    def close(self, volunteer: Volunteer, to: PeerId, *, dies: bool = False) -> None:
        """An end closes a link, or ``dies``; the other one hears of it, after healing at the
        latest."""
        link = volunteer.links.pop(to, None)
        if link is None:
            return
        other = self._volunteers[to]
        heard = partial(self.on_closed, other, volunteer.peer, dies)
        self._agenda.sometime(CLOSE_S, partial(self._arrive, link, other, heard, certain=True))

    # --- messages --------------------------------------------------------------------------

    def send(
        self,
        sender: Volunteer,
        to: PeerId,
        kind: str,
        lane: str,
        action: Action,
        *,
        upkeep: bool = False,
    ) -> None:
        """Send something on the link to ``to``, if there is one."""
        link = sender.links.get(to)
        if link is None:
            return
        other = self._volunteers[to]
        self.carried += not (upkeep or sender.lies or other.lies)
        if self._storms and self._drowns(sender.peer, to):
            return
        arrive = partial(self._arrive, link, other, action)
        trick = self._trick_on(kind) if self._tricks else None
        if trick is None or trick == "double":
            self._agenda.deliver((sender.peer, to, lane), DELAY_S, arrive)
        if trick == "double" or trick == "late":
            self._agenda.sometime(LATE_S, arrive)
        elif trick == "ahead":
            self._agenda.after(DELAY_S[0], arrive)

    def send_beat(
        self, sender: Volunteer, hear: Callable[[Volunteer], None], to: Container[PeerId]
    ) -> None:
        """Send a heartbeat on the sender's links with these, as one event."""
        links = [(peer, link) for peer, link in sender.links.items() if peer in to]
        self._agenda.deliver((sender.peer, "beat"), DELAY_S, partial(self._beat, links, hear))

    def _beat(self, links: list[tuple[PeerId, Link]], hear: Callable[[Volunteer], None]) -> None:
        for to, link in links:
            other = self._volunteers[to]
            drowned = bool(self._storms) and self._drowns(link.one, link.two)
            if not drowned and self._trick_on("Heartbeat") is None:
                self._arrive(link, other, partial(hear, other))

    def _arrive(self, link: Link, to: Volunteer, action: Action, *, certain: bool = False) -> None:
        sender = link.two if link.one == to.peer else link.one
        if to.links.get(sender) is not link:
            return
        if self._side and not self.reaches(sender, to.peer):
            if certain or not self._lossy:
                link.held.append((to, action))
            return
        if to.paused:
            to.take_in(partial(self._unless_closed, link, to, sender, action))
        else:
            action()

    @staticmethod
    def _unless_closed(link: Link, to: Volunteer, sender: PeerId, action: Action) -> None:
        if to.links.get(sender) is link:
            action()

    # --- faults ----------------------------------------------------------------------------

    def split(self, side: Mapping[PeerId, int], *, lossy: bool) -> None:
        """Split the network; ``lossy``: messages in flight are lost, not late."""
        self._side, self._lossy = dict(side), lossy

    def place(self, newcomer: PeerId, beside: PeerId) -> None:
        """Put a newcomer into another volunteer's part: a split between stages divides no stage."""
        if self._side:
            self._side[newcomer] = self._side.get(beside, 0)

    def heal(self) -> None:
        """Heal the network; waiting messages continue."""
        self._side = {}
        links = {id(k): k for v in self._volunteers.values() for k in v.links.values()}
        for link in links.values():
            held, link.held = link.held, []
            for to, action in held:
                within = (DELAY_S[0], 10 * DELAY_S[1])
                arrive = partial(self._arrive, link, to, action, certain=True)
                self._agenda.deliver((id(link), to.peer), within, arrive)

    def play(self, trick: Trick) -> None:
        """Play a trick on the next message of its kind."""
        self._tricks.append(trick)

    def storm(self, between: frozenset[PeerId], until: float) -> None:
        """Lose half of the messages between two volunteers."""
        self._storms.append(Storm(between, until))

    def calm(self) -> None:
        """End all tricks and storms."""
        self._tricks, self._storms = [], []

    def _trick_on(self, kind: str) -> TrickKind | None:
        for index, trick in enumerate(self._tricks):
            if not trick.message or trick.message == kind:
                del self._tricks[index]
                trick.played()
                return trick.kind
        return None

    def _drowns(self, one: PeerId, two: PeerId) -> bool:
        """Whether a storm takes this message from one to the other."""
        self._storms = [storm for storm in self._storms if storm.until > self._agenda.now]
        stormy = any({one, two} == storm.between for storm in self._storms)
        return stormy and self._agenda.random.random() < 0.5
