"""A tiny swarm of real volunteers on the hosts of a laboratory, watched until it is done."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from client.cli.founding.options import RunChoices
from client.cli.logging.log_file import read_lines
from client.control.snapshot import Snapshot
from client.lab.founding import write_lab
from client.lab.local_swarm import LocalSwarm
from client.store.paths import home_folders
from tests.support.e2e_local import TINY, killed_at_the_end, wait_for

PORT: Final = 4001
DEADLINE_S: Final = 240.0
FLAGS: Final = ("--threads", "1", "--compute-share", "30")
"""They train while something else is waited for."""


def short_run(steps: int) -> RunChoices:
    """Return a run of two stages and few steps."""
    return RunChoices(
        name="far",
        stages=2,
        steps=steps,
        sequences=2,
        microbatches=4,
        measure=False,
        dual_homing=False,
    )


class ScatteredSwarm:
    """Volunteers by the names of their hosts."""

    def __init__(
        self, swarm: LocalSwarm, within: Callable[[str], Sequence[str]], folder: Path
    ) -> None:
        self._swarm, self._within, self._folder = swarm, within, folder

    def start(self, host: str, *flags: str, relay_only: bool = False) -> None:
        flags = flags if relay_only else (*FLAGS, *flags)
        self._swarm.start(host, flags, within=self._within(host), relay_only=relay_only)

    def pid(self, host: str) -> int:
        """Return the process of a host's volunteer."""
        return next(one.process.pid for one in self._swarm.members if one.name == host)

    def told(self, host: str) -> list[str]:
        """Return what the owner of a host's volunteer is told, once."""
        member = next(one for one in self._swarm.members if one.name == host)
        return [event.words for event in member.new_events()]

    def wait(self, until: Callable[[dict[str, Snapshot]], bool], what: str) -> dict[str, Snapshot]:
        """Wait until the volunteers' snapshots fulfil a condition; return them."""

        def look() -> dict[str, Snapshot] | None:
            seen = {member.name: member.snapshot() for member in self._swarm.members}
            known = {name: now for name, now in seen.items() if now is not None}
            return known if len(known) == len(seen) and until(known) else None

        return wait_for(look, what, self._swarm.members, DEADLINE_S)

    def wait_done(self) -> dict[str, Snapshot]:
        """Wait until the run is complete everywhere."""
        return self.wait(lambda seen: all(now.state == "done" for now in seen.values()), "done")

    def steps(self) -> set[int]:
        """Return the steps that somebody has committed, as they are logged soon after."""
        homes = [home_folders(self._folder / member.name) for member in self._swarm.members]
        lines = [line for home in homes for line in read_lines(home.logs)]
        return {int(str(line.data["step"])) for line in lines if line.kind == "StepCommitted"}


@contextmanager
def scattered_swarm(
    folder: Path,
    founder: str,
    addresses: Sequence[str],
    within: Callable[[str], Sequence[str]],
    steps: int = 3,
) -> Iterator[ScatteredSwarm]:
    """Found a swarm whose invite names its founder's addresses; its volunteers end with the block.

    Args:
        folder: for homes and logs.
        founder: the founder's host; its volunteer has to be started as any other.
        addresses: numbers, with ``PORT``.
        within: the command that runs a command on a host.
        steps: of the run.
    """
    path, home = folder / "x.swarm", folder / founder
    write_lab(path, home, short_run(steps), TINY, hosts=addresses, port=PORT)
    with killed_at_the_end(folder) as swarm:
        yield ScatteredSwarm(swarm, within, folder)
