"""The demo's run: watches the volunteers, kills one on the way, and notes the recovery.

It drives processes only through their control sockets and signals, as any user could. It holds the
observations; the report evaluates them.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from client.control.snapshot import EventView, Snapshot
from client.lab.demo.screen import Screen, View
from client.lab.local_swarm import LocalSwarm, Member

KILL_AT = 0.4
"""Share of the steps after which a volunteer is killed: late enough that all have joined."""


@dataclass(frozen=True)
class Kill:
    """A volunteer that was killed, and its recovery."""

    name: str
    peer: str
    step: int
    time: float
    """Unix seconds."""


@dataclass
class Observed:
    """The observations from outside."""

    losses: dict[int, float] = field(default_factory=dict)
    """Mean training loss by step."""
    names: dict[str, str] = field(default_factory=dict)
    """Peer id to the name of the volunteer."""
    last: dict[str, Snapshot] = field(default_factory=dict)
    """The newest snapshot of every volunteer, by name."""
    kill: Kill | None = None
    recovered_s: float | None = None
    """From SIGKILL to the first accepted backward of a re-routed microbatch."""
    tokens_per_s: list[float] = field(default_factory=list)
    """Samples of the swarm's speed."""

    def total(self, counter: str) -> int:
        """Return the sum of one counter over all volunteers."""
        return sum(getattr(now.counters, counter) for now in self.last.values())


class DemoRun:
    """One run of the demo; ``run`` returns when the swarm is done."""

    def __init__(self, swarm: LocalSwarm, screen: Screen, *, kill: bool, timeout_s: float) -> None:
        self._swarm = swarm
        self._screen = screen
        self._wants_kill = kill
        self._begin = time.monotonic()
        self._timeout_s = timeout_s
        self.observed = Observed()

    def run(self) -> Observed:
        """Watch until every living volunteer is done.

        Raises:
            UserError: a volunteer ended that was not killed, or time ran out.
        """
        self._swarm.wait("done", self._turn, self._timeout_s)
        return self.observed

    def _turn(self) -> bool:
        """Look, and do what is due; tell whether all are done."""
        self._look()
        self._kill_one_when_due()
        return self._done()

    def _look(self) -> None:
        for member in self._swarm.alive:
            now = member.snapshot()
            if now is not None:
                self.observed.last[member.name] = now
                self.observed.names[now.peer] = member.name
            for event in member.new_events():
                self._learn(event)
        newest = self._newest()
        if newest is not None:
            self._note(newest)
            self._screen.show(self._view(newest))

    def _learn(self, event: EventView) -> None:
        if event.kind == "StepCommitted":
            step, loss = event.data.get("step"), event.data.get("loss")
            if isinstance(step, int) and isinstance(loss, float):
                self.observed.losses[step] = loss
        elif event.kind == "RecoveryEvent" and event.data.get("phase") == "recovered":
            self._recovered(event)

    def _recovered(self, event: EventView) -> None:
        kill = self.observed.kill
        if kill is None or event.time < kill.time:
            return
        taken_s = event.time - kill.time
        known_s = self.observed.recovered_s
        self.observed.recovered_s = taken_s if known_s is None else min(known_s, taken_s)

    def _kill_one_when_due(self) -> None:
        newest = self._newest()
        if not self._wants_kill or newest is None or newest.step < KILL_AT * newest.steps:
            return
        victim = choose_victim(self._swarm.alive, self.observed, newest)
        if victim is None:
            return
        self._wants_kill = False
        moment = victim.kill()
        peer = self.observed.last[victim.name].peer
        self.observed.kill = Kill(victim.name, peer, newest.step, moment)
        self._screen.say(f"SIGKILL to {victim.name} at step {newest.step}")

    def _note(self, newest: Snapshot) -> None:
        if newest.loss is not None and newest.step:
            self.observed.losses.setdefault(newest.step - 1, newest.loss)
        if newest.state == "training" and newest.tokens_per_s > 0:
            self.observed.tokens_per_s.append(newest.tokens_per_s)

    def _newest(self) -> Snapshot | None:
        living = [self.observed.last.get(member.name) for member in self._swarm.alive]
        return max((now for now in living if now), key=lambda now: now.step, default=None)

    def _done(self) -> bool:
        living = [self.observed.last.get(member.name) for member in self._swarm.alive]
        return bool(living) and all(now is not None and now.state == "done" for now in living)

    def _view(self, newest: Snapshot) -> View:
        kill = self.observed.kill
        return View(
            now=newest,
            names=self.observed.names,
            dead=frozenset({kill.peer} if kill else ()),
            losses=[loss for _, loss in sorted(self.observed.losses.items())],
            elapsed_s=time.monotonic() - self._begin,
        )


def choose_victim(alive: Iterator[Member], seen: Observed, newest: Snapshot) -> Member | None:
    """Return a volunteer that serves every stage it holds beside another live replica.

    Of several, one of the latest stage: microbatches are in flight to it, so that its death
    requires re-routing.
    """
    serving = {
        stage.stage: {replica.peer for replica in stage.replicas if replica.state == "serving"}
        for stage in newest.stages
    }
    candidates: list[tuple[int, int, Member]] = []
    for member in alive:
        now = seen.last.get(member.name)
        held = [seat.stage for seat in now.seats] if now else []
        if now and held and all(serving.get(stage, set()) > {now.peer} for stage in held):
            candidates.append((max(held), len(candidates), member))
    return max(candidates)[2] if candidates else None
