"""Carries out assignments: volunteers fetch stages one after the other, serve and drop them.

State: downloads in progress, served stages (in ``Capacity``), counts of costs. Make before break: a
served stage stays served until it is dropped.
"""

from collections.abc import Callable
from dataclasses import dataclass

from client.lab.simulate.agenda import Agenda
from client.lab.simulate.market.capacity import Capacity
from client.lab.simulate.market.nature import Nature

Loaded = Callable[[int, int], object]
"""Called with volunteer and stage when a download is complete; the policy then calls ``serve``."""


@dataclass
class Effort:
    """Counts so far."""

    downloads: int = 0
    """Downloads begun."""
    moves: int = 0
    """Served stages given up by volunteers that stayed."""


class Fleet:
    """Downloads and serving, on behalf of a policy.

    Args:
        loaded: called on every complete download of a volunteer that is still there.
    """

    def __init__(self, nature: Nature, agenda: Agenda, loaded: Loaded) -> None:
        self.capacity = Capacity(nature)
        self.effort = Effort()
        self.changed = False
        """Whether what is served has changed; the observer resets it."""
        self._nature, self._agenda, self._loaded = nature, agenda, loaded
        self._queues: dict[int, list[int]] = {}
        self._present: set[int] = set()

    def enter(self, volunteer: int) -> None:
        """Add a volunteer."""
        self._present.add(volunteer)

    def vanish(self, volunteer: int) -> None:
        """Remove a volunteer with its downloads and stages."""
        self._present.discard(volunteer)
        self._queues.pop(volunteer, None)
        self._serve(volunteer, ())

    def present(self, volunteer: int) -> bool:
        """Tell whether a volunteer is there, known or not."""
        return volunteer in self._present

    def fetching(self, volunteer: int) -> list[int]:
        """Return the stages that are being fetched, in order."""
        return self._queues.get(volunteer, [])

    def serving(self, volunteer: int) -> tuple[int, ...]:
        """Return the stages that are served, the newest last."""
        return self.capacity.serving(volunteer)

    def fetch(self, volunteer: int, stage: int) -> None:
        """Begin a download, after those in progress."""
        queue = self._queues.setdefault(volunteer, [])
        if volunteer not in self._present or stage in queue or stage in self.serving(volunteer):
            return
        queue.append(stage)
        self.effort.downloads += 1
        if queue == [stage]:
            self._begin(volunteer, queue)

    def serve(self, volunteer: int, stage: int) -> None:
        """Serve a stage that has been fetched, besides what is served already."""
        others = tuple(s for s in self.serving(volunteer) if s != stage)
        self._serve(volunteer, (*others, stage))

    def drop(self, volunteer: int, stage: int) -> None:
        """Stop serving or fetching a stage."""
        if stage in self.serving(volunteer):
            self.effort.moves += 1
            self._serve(volunteer, tuple(s for s in self.serving(volunteer) if s != stage))
        queue = self.fetching(volunteer)
        if stage in queue:
            under_way = queue[0] == stage
            # A new list, so that the end of the abandoned download finds itself outdated.
            self._queues[volunteer] = rest = [s for s in queue if s != stage]
            if under_way and rest:
                self._begin(volunteer, rest)
            elif not under_way:
                self._queues[volunteer] = queue
                queue.remove(stage)

    def _serve(self, volunteer: int, stages: tuple[int, ...]) -> None:
        if stages != self.serving(volunteer):
            self.capacity.serve(volunteer, stages)
            self.changed = True

    def _begin(self, volunteer: int, queue: list[int]) -> None:
        seconds = self._nature.fetch_s(volunteer, self._agenda.now)
        self._agenda.after(seconds, lambda: self._complete(volunteer, queue))

    def _complete(self, volunteer: int, queue: list[int]) -> None:
        if self._queues.get(volunteer) is not queue:
            return
        stage = queue.pop(0)
        if queue:
            self._begin(volunteer, queue)
        self._loaded(volunteer, stage)
