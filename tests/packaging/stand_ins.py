"""Stand-ins for programs that packaging scripts run; each notes what it was told in a file."""

import time
from pathlib import Path

CLIENT = """#!/bin/sh
# The client: "join" stays until SIGTERM, or ends at once with the code in the file "ends-with".
echo "$@" >>"{notes}"
case $1 in
finish)
    [ -e "{folder}/can-finish" ] || exit 3
    kill -USR2 "$(cat "{folder}/pid")"
    exit 0
    ;;
esac
echo $$ >"{folder}/pid"
[ ! -e "{folder}/ends-with" ] || exit "$(cat "{folder}/ends-with")"
trap 'echo SIGTERM >>"{notes}"; sleep 0.3; echo "said goodbye" >>"{notes}"; exit 0' TERM
trap 'echo "finished" >>"{notes}"; exit 0' USR2
echo ready >>"{notes}"
while :; do sleep 0.05; done
"""
SCONTROL = """#!/bin/sh
echo "scontrol $*" >>"{notes}"
[ "$1" != show ] || echo "   JobState=$(cat "{folder}/job-state") Reason=None"
"""
PROGRAMS = (("volunteer", CLIENT), ("scontrol", SCONTROL))


class StandIns:
    """A folder of programs for PATH, and what they noted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.programs = folder / "programs"
        self.notes = folder / "notes"
        self.notes.touch()
        self.programs.mkdir()
        self.job_state("RUNNING")
        for name, script in PROGRAMS:
            program = self.programs / name
            program.write_text(script.format(notes=self.notes, folder=folder))
            program.chmod(0o755)

    def job_state(self, state: str) -> None:
        """Slurm's state of the job from now on."""
        (self.folder / "job-state").write_text(state)

    def client_ends_with(self, code: int) -> None:
        """Let the client end by itself."""
        (self.folder / "ends-with").write_text(str(code))

    def client_can_finish(self) -> None:
        """Let the client answer "finish" instead of saying that it is not running."""
        (self.folder / "can-finish").touch()

    def lines(self) -> list[str]:
        """Everything noted so far."""
        return self.notes.read_text().splitlines()

    def wait_until_noted(self, line: str, within_s: float = 30.0) -> None:
        deadline = time.monotonic() + within_s
        while line not in self.lines():
            assert time.monotonic() < deadline, f"{line!r} not in {self.lines()}"
            time.sleep(0.02)
