"""The demo's run: trains to the last step, kills a volunteer on the way, and shows it live."""

import shutil
import time
from pathlib import Path

from client.control.snapshot import Snapshot
from client.lab.chaos.catalogue import Fault
from client.lab.chaos.ground import Ground
from client.lab.chaos.measure import read_progress
from client.lab.chaos.run import Run
from client.lab.chaos.schedule import Planned
from client.lab.demo.folder import SWARM_FILE
from client.lab.demo.screen import Screen, View

KILL_AT = 0.4
"""Share of the steps after which a volunteer is killed: late enough that all have joined."""


class DemoRun(Run):
    """A run of at most one fault, whose victim stays away.

    Args:
        ground, homes, names: see ``Run``.
        out: the folder for the swarm file and the logs.
        screen: shows it.
        kill: whether to kill a volunteer, of the last stage where it is not alone there:
            microbatches are in flight to it, so that its death requires re-routing.
    """

    def __init__(
        self,
        ground: Ground,
        homes: Path,
        out: Path,
        screen: Screen,
        *,
        names: list[str],
        kill: bool,
    ) -> None:
        last = ground.manifest.stage_count - 1
        kills = (Planned(0, 0.0, Fault("kill", "any"), last, 0, 0.0),) if kill else ()
        logs = out / "logs"
        super().__init__(
            ground, homes, kills, logs=logs, names=names, say=screen.say, restarts=False
        )
        self._screen, self._out = screen, out

    def total(self, counter: str) -> int:
        """Return the sum of one counter over the volunteers that were not killed."""
        return sum(getattr(now.counters, counter) for now in self._seen_last())

    def _watch(self, seconds: float) -> None:
        """Train to the last step within so many seconds.

        Raises:
            UserError: a volunteer ended that was not killed, or time ran out.
        """
        self.seen.began = time.time()
        shutil.copy(self._crew.swarm_file, self._out / SWARM_FILE)
        self._crew.swarm.wait("done", self._is_done, seconds)
        self._crew.swarm.stop()
        self._look()

    def _is_done(self) -> bool:
        """Look, kill one when it is time, and tell whether all are done."""
        self._look()
        living = list(self._crew.alive)
        newest = max(self._seen_last(), key=lambda now: now.step, default=None)
        if newest is None:
            return False
        now = time.time()
        late = newest.step >= KILL_AT * newest.steps
        self._injector.tick(now, now - self.seen.began, begin=late)
        self._screen.show(self._view(newest))
        return all(v.last is not None and v.last.state == "done" for v in living)

    def _seen_last(self) -> list[Snapshot]:
        """Return the newest snapshot of every living volunteer."""
        return [v.last for v in self._crew.volunteers.values() if v.last is not None]

    def _view(self, newest: Snapshot) -> View:
        volunteers = self._crew.volunteers.values()
        return View(
            now=newest,
            names={volunteer.peer: volunteer.name for volunteer in volunteers},
            dead=frozenset(v.peer for v in volunteers if v.member is not None and not v.alive),
            losses=[loss for _, loss in sorted(read_progress(self.seen.notes).losses.items())],
            elapsed_s=time.time() - self.seen.began,
        )
