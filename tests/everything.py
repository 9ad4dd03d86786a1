"""All tests, in two runs side by side: ``make test``.

Most tests are of real processes, sockets and screens with deadlines: they run one after the other,
at the usual priority, and often wait. The simulations only compute, on virtual time, and it is of
no matter when: they run beside the others at the lowest priority, on what these leave of the cores,
and on all cores once these are done. With arguments it is pytest.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

PYTEST = (sys.executable, "-m", "pytest", "-q")
SIMULATED = Path("tests/sim")
ON_ALL_CORES = ("test_chaos_liar.py", "test_chaos_seeds.py")
IDLE_PRIORITY = 19


def main(arguments: list[str]) -> int:
    if arguments:
        return subprocess.run([*PYTEST, *arguments], check=False).returncode
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    with tempfile.TemporaryFile("w+") as said, beside(said) as process:
        code = subprocess.run([*PYTEST, f"--ignore={SIMULATED}"], check=False).returncode
        print(f"\n{SIMULATED}, begun beside these:", flush=True)
        simulated_code = process.wait()
        said.seek(0)
        print(said.read(), flush=True)
    return code or simulated_code


def simulations() -> list[str]:
    """Their files; those that run on all cores begin when few others are left."""
    files = SIMULATED.glob("test_*.py")
    ordered = sorted(files, key=lambda file: (file.name in ON_ALL_CORES, file.name))
    return [str(file) for file in ordered]


@contextmanager
def beside(said: IO[str]) -> Iterator[subprocess.Popen[str]]:
    """Run the simulations at the lowest priority; nothing of them is left at the end."""
    process = subprocess.Popen(
        [*PYTEST, "-p", "no:cacheprovider", *simulations()],
        stdout=said,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        give_way(process.pid)
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def give_way(pid: int) -> None:
    """Give a process, and those that it starts, the lowest priority.

    Linux weighs a session as a whole first, where it does so at all.
    """
    os.setpriority(os.PRIO_PROCESS, pid, IDLE_PRIORITY)
    with suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text(str(IDLE_PRIORITY))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
