"""Carries out the schedule, one fault at a time, and undoes each.

    due -> (armed ->) hit -> made good

``armed``: a failpoint is set and its moment awaited; one that does not come in time is withdrawn
and the fault counts as not done. A fault never begins while another is open, nor against the last
healthy replica of its stage (except for ``stage``): it waits, and the report has the waiting time.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from client.lab.chaos.catalogue import ACTIONS, Kind, stages_of
from client.lab.chaos.crew import Crew, Volunteer
from client.lab.chaos.failpoints import reached
from client.lab.chaos.relay import CLEAR, Shape
from client.lab.chaos.schedule import Planned
from client.lab.chaos.wires import Wires

RESTART_S = 3.0
"""From the death of a process until it is started again."""
ARMED_S = 20.0
"""Longest wait for a moment."""
SHAPES: dict[Kind, Shape] = {
    "partition": Shape(blocked=True),
    "delay": Shape(delay_s=1.0),
    "slow": Shape(bytes_per_s=128_000.0),
}


@dataclass
class Injected:
    """A fault, from its choice of a victim on. Moments in Unix seconds."""

    planned: Planned
    stage: int
    victims: list[str]
    begun: float
    """When it was armed or done."""
    at: float | None = None
    """The instant of the fault itself; None: its moment did not come."""
    step: int | None = None
    over: float | None = None
    """The time at which the harness had undone it: restarted, continued or healed."""


@dataclass
class _Open:
    """The present fault and the remaining work."""

    injected: Injected
    victim: Volunteer
    armed_until: float | None = None
    restarts: list[tuple[float, Volunteer]] = field(default_factory=list)
    continue_at: float | None = None
    heal_at: float | None = None


class Injector:
    """Call ``tick`` as often as possible; see the module's docstring.

    Args:
        restarts: whether killed volunteers are started again.
    """

    def __init__(
        self,
        crew: Crew,
        wires: Wires,
        schedule: Sequence[Planned],
        stages: int,
        say: Callable[[str], None],
        *,
        restarts: bool = True,
    ) -> None:
        self._crew, self._wires, self._stages, self._say = crew, wires, stages, say
        self._restarts = restarts
        self._queue = deque(schedule)
        self._open: _Open | None = None
        self.injected: list[Injected] = []

    @property
    def busy(self) -> bool:
        """Whether a fault is open."""
        return self._open is not None

    def expects_end_of(self, volunteer: Volunteer) -> bool:
        """Whether a fault of ours may have ended its process."""
        if self._open is None:
            return False
        dead = any(restarted is volunteer for _, restarted in self._open.restarts)
        return dead or (self._open.armed_until is not None and self._open.victim is volunteer)

    def is_cut_off(self, volunteer: Volunteer) -> bool:
        """Whether a partition separates it, even if it has not noticed yet."""
        opened = self._open
        return opened is not None and opened.heal_at is not None and opened.victim is volunteer

    def tick(self, now: float, elapsed_s: float, *, begin: bool = True) -> None:
        """Continue the open fault, or begin the next one that is due.

        Args:
            now: Unix seconds.
            elapsed_s: since the measured time began.
            begin: False: only end the open fault.
        """
        if self._open is not None:
            self._advance(self._open, now)
        elif begin and self._queue and elapsed_s >= self._queue[0].at_s:
            self._begin(self._queue[0], now)

    # --- beginning ---------------------------------------------------------------------------

    def _begin(self, planned: Planned, now: float) -> None:
        chosen = self._choose(planned)
        if chosen is None:
            return
        self._queue.popleft()
        stage, victims = chosen
        names = [volunteer.name for volunteer in victims]
        injected = Injected(planned, stage, names, now)
        self.injected.append(injected)
        self._open = _Open(injected, victims[0])
        if planned.fault.kind in ("kill", "stage") and planned.fault.moment == "any":
            self._kill_all(self._open, victims, now)
        elif planned.fault.kind in SHAPES:
            self._shape(self._open, now)
        else:
            self._arm(self._open, now)

    def _choose(self, planned: Planned) -> tuple[int, list[Volunteer]] | None:
        """Return a stage and its victims; all of its replicas for ``stage``."""
        whole = planned.fault.kind == "stage"
        possible = stages_of(planned.fault, self._stages)
        for stage in sorted(possible, key=lambda stage: stage != planned.stage):
            healthy = self._healthy(stage)
            if whole and healthy:
                return stage, healthy
            if len(healthy) > 1:
                return stage, [healthy[planned.pick % len(healthy)]]
        return None

    def _healthy(self, stage: int) -> list[Volunteer]:
        return [v for v in self._crew.alive if v.stage == stage and not v.stopped]

    def _kill_all(self, opened: _Open, victims: Sequence[Volunteer], now: float) -> None:
        opened.injected.at, opened.injected.step = now, victims[0].step
        for volunteer in victims:
            volunteer.went(self._crew.kill(volunteer))
            if self._restarts:
                opened.restarts.append((now + RESTART_S, volunteer))
        self._tell(opened.injected)

    def _shape(self, opened: _Open, now: float) -> None:
        injected, victim = opened.injected, opened.victim
        self._wires.surround(victim.name, SHAPES[injected.planned.fault.kind])
        injected.at, opened.heal_at = now, now + injected.planned.seconds
        if injected.planned.fault.kind == "partition":
            victim.went(now)
        self._tell(injected)

    def _arm(self, opened: _Open, now: float) -> None:
        planned, victim = opened.injected.planned, opened.victim
        self._crew.arm(victim, f"{planned.fault.moment} {ACTIONS[planned.fault.kind]}")
        opened.armed_until = now + ARMED_S
        if planned.fault.moment == "recovery":
            self._give_it_something_to_mend(opened, now)

    def _give_it_something_to_mend(self, opened: _Open, now: float) -> None:
        """Kill a replica of the next stage, to which the victim may have sent microbatches."""
        neighbours = self._healthy(opened.injected.stage + 1)
        if len(neighbours) > 1:
            other = neighbours[opened.injected.planned.pick % len(neighbours)]
            other.went(self._crew.kill(other))
            opened.injected.victims.append(other.name)
            opened.restarts.append((now + RESTART_S, other))

    # --- going on ----------------------------------------------------------------------------

    def _advance(self, opened: _Open, now: float) -> None:
        if opened.armed_until is not None:
            self._await_moment(opened, now)
        for due, volunteer in list(opened.restarts):
            if due <= now:
                opened.restarts.remove((due, volunteer))
                self._crew.start(volunteer)
        if opened.continue_at is not None and opened.continue_at <= now:
            opened.continue_at = None
            self._crew.go_on(opened.victim)
        if opened.heal_at is not None and opened.heal_at <= now:
            opened.heal_at = None
            self._wires.surround(opened.victim.name, CLEAR)
            opened.victim.came(now)
        waits = (opened.armed_until, opened.continue_at, opened.heal_at)
        if not opened.restarts and all(wait is None for wait in waits):
            opened.injected.over, self._open = now, None

    def _await_moment(self, opened: _Open, now: float) -> None:
        hit = reached(opened.victim.failpoint)
        if hit is not None:
            opened.armed_until = None
            opened.injected.at, opened.injected.step = hit
            self._hit(opened, now)
            self._tell(opened.injected)
        elif opened.armed_until is not None and opened.armed_until <= now:
            opened.armed_until = None
            self._crew.arm(opened.victim, "")
            self._say(f"{opened.injected.planned.fault}: its moment did not come")

    def _hit(self, opened: _Open, now: float) -> None:
        """The process has hit its failpoint: follow it up."""
        planned, victim, at = opened.injected.planned, opened.victim, opened.injected.at or now
        match planned.fault.kind:
            case "kill":
                self._crew.kill(victim)
                victim.went(at)
                opened.restarts.append((now + RESTART_S, victim))
            case "stop":
                self._crew.stop(victim)
                victim.went(at)
                opened.continue_at = at + planned.seconds
            case "worker":
                victim.went(at)  # until it serves again
            case _:
                pass  # the node recovers by itself

    def _tell(self, injected: Injected) -> None:
        where = "" if injected.step is None else f", step {injected.step}"
        whom = ", ".join(injected.victims)
        self._say(f"{injected.planned.fault}: {whom} (stage {injected.stage}{where})")
