"""One run: starts a swarm, observes it, injects the faults of its schedule, and ends it.

The paired run is the same with an empty schedule, the demo one with a single kill. Observations are
collected in a ``Seen``; ``measure`` evaluates them.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from client.lab.chaos.crew import Crew, Volunteer
from client.lab.chaos.ground import Ground
from client.lab.chaos.inject import Injected, Injector
from client.lab.chaos.record import Note
from client.lab.chaos.schedule import Planned
from client.lab.chaos.wires import Wires

POLL_S = 0.2
LOOK_S = 1.0
TELL_S = 5.0
"""Between two lines about the progress of training."""
WARM_STEPS = 3
"""Steps before time is taken."""
READY_S = 240.0
MOST_TROUBLE = 200
KEPT = ("StepCommitted", "StageClosed", "StageAssigned", "RecoveryEvent")


@dataclass
class Seen:
    """The observations of a run from outside. Moments in Unix seconds."""

    began: float = 0.0
    """The beginning of the measured time."""
    ended: float = 0.0
    """Its end."""
    notes: list[Note] = field(default_factory=list)
    injected: list[Injected] = field(default_factory=list)
    away: dict[str, list[tuple[float, float | None]]] = field(default_factory=dict)
    crashes: list[str] = field(default_factory=list)
    """Processes that ended without a fault of ours, in words."""
    trouble: list[str] = field(default_factory=list)
    """Warnings and errors in the logs."""
    retraced: dict[int, float] = field(default_factory=dict)
    """Losses by step of its rounds made again (``retrace``); empty: they were not."""


class Run:
    """Watches a crew; ``perform`` returns the observations.

    Args:
        ground: the swarm's manifest and its founder's signature.
        folder: for homes; short.
        schedule: the faults.
        logs: the folder for logs.
        names: of the volunteers.
        flags: further flags of each.
        say: shows a line to the user.
        restarts: whether killed volunteers are started again.
    """

    def __init__(
        self,
        ground: Ground,
        folder: Path,
        schedule: Sequence[Planned],
        *,
        logs: Path,
        names: Sequence[str],
        flags: Sequence[str] = (),
        say: Callable[[str], None],
        restarts: bool = True,
    ) -> None:
        self._ground, self._names, self._say = ground, names, say
        self._crew = Crew(folder, logs, flags)
        self._wires = Wires(self._crew.processes)
        stages = ground.manifest.stage_count
        self._injector = Injector(self._crew, self._wires, schedule, stages, say, restarts=restarts)
        self._looked = self._said = 0.0
        self._steps = set[int]()
        self._news = ""
        """What was said last of a step, while nobody has heard it."""
        self.seen = Seen()

    def perform(self, seconds: float) -> Seen:
        """Start, and measure for ``seconds``.

        Raises:
            UserError: the swarm did not start.
        """
        with self._wires, self._crew:
            self._start()
            self._watch(seconds)
            self.seen.ended = self.seen.began + seconds
            self.seen.injected = self._injector.injected
            for volunteer in self._crew.volunteers.values():
                self.seen.away[volunteer.name] = list(volunteer.away)
        return self.seen

    # --- starting ----------------------------------------------------------------------------

    def _start(self) -> None:
        volunteers = [self._crew.enlist(name, self._wires) for name in self._names]
        first, *others = volunteers
        self._ground.write(self._crew.swarm_file, self._crew.address(first))
        self._crew.start(first)
        self._until("a first volunteer", lambda: self._crew.share_capacity(first))
        for volunteer in others:
            self._crew.start(volunteer)

    def _is_ready(self) -> bool:
        serving = all(v.stage is not None for v in self._crew.volunteers.values())
        return serving and len(self._steps) >= WARM_STEPS

    def _until(self, what: str, condition: Callable[[], bool]) -> None:
        def looked() -> bool:
            self._look()
            return condition()

        self._crew.swarm.wait(what, looked, READY_S)

    # --- watching ----------------------------------------------------------------------------

    def _watch(self, seconds: float) -> None:
        """Observe for so long once all are at work, and until the last fault is undone, so that its
        figures are whole."""
        self._until("all volunteers at work", self._is_ready)
        self.seen.began = time.time()
        end = time.monotonic() + seconds
        while (begin := time.monotonic() < end) or self._injector.busy:
            self._turn(begin=begin)
            time.sleep(POLL_S)

    def _turn(self, *, begin: bool) -> None:
        now = time.time()
        self._injector.tick(now, now - self.seen.began, begin=begin)
        self._look()
        self._mourn(now)
        if self._news and time.monotonic() - self._said > TELL_S:
            self._said = time.monotonic()
            self._say(self._news)
            self._news = ""

    def _look(self) -> None:
        for note in self._crew.notes():
            self._take(note)
        if time.monotonic() - self._looked < LOOK_S:
            return
        self._looked = time.monotonic()
        for volunteer in self._crew.alive:
            self._crew.look(volunteer)
            self._note_state(volunteer)

    def _take(self, note: Note) -> None:
        if note.kind in KEPT:
            self.seen.notes.append(note)
        elif note.level in ("warning", "error") and len(self.seen.trouble) < MOST_TROUBLE:
            self.seen.trouble.append(f"{note.name}: {note.words[:300]}")
        step = note.number("step")
        if note.kind == "StepCommitted" and step is not None and step not in self._steps:
            self._steps.add(step)
            self._news = note.words

    def _note_state(self, volunteer: Volunteer) -> None:
        at_work = volunteer.stage is not None and not volunteer.stopped
        if at_work and not self._injector.is_cut_off(volunteer):
            volunteer.came(time.time())

    def _mourn(self, now: float) -> None:
        """Note volunteers whose process has ended without a fault of ours, and restart them."""
        for volunteer in self._crew.volunteers.values():
            if volunteer.member is None or volunteer.alive:
                continue
            if self._injector.expects_end_of(volunteer):
                continue
            words = f"{volunteer.name} ended by itself with {volunteer.member.process.returncode}"
            self.seen.crashes.append(words)
            self._say(words)
            self._crew.kill(volunteer)
            volunteer.went(now)
            self._crew.start(volunteer)
