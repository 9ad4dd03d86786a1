"""Run the commands of the first part of tests/bench/README.md in turn, and keep what they print.

Run: python -m tests.bench [--out FOLDER] [--list]

A command that fails does not stop the others. Those marked *root* are left out for other users.
"""

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
PAGE = Path(__file__).with_name("README.md")
_SECTION, _COMMAND = re.compile(r"^#+ ", re.MULTILINE), re.compile(r"^\|.*\| `([^`]+)` \|", re.M)


def commands(page: str, *, root: bool) -> Iterator[str]:
    """Yield the commands in the tables of the page's first part, each once."""
    first, _ = page.split("\n# Measured apart\n")
    found = [
        command
        for section in _SECTION.split(first)
        if root or "(root;" not in section
        for command in _COMMAND.findall(section)
    ]
    yield from dict.fromkeys(found)


def main() -> None:
    """Measure; ends with 1 if a command failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("figures"), help="for what is printed")
    parser.add_argument("--list", action="store_true", help="only say what would be run")
    asked = parser.parse_args()
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    failed = 0
    for number, command in enumerate(commands(PAGE.read_text(), root=os.geteuid() == 0), start=1):
        print(command, flush=True)
        if asked.list:
            continue
        asked.out.mkdir(parents=True, exist_ok=True)
        kept, begun = asked.out / f"{number:02}.txt", time.monotonic()
        with kept.open("w") as out:
            out.write(f"{command}\n\n")
            out.flush()
            done = subprocess.run(
                command,
                shell=True,
                executable="/bin/bash",
                cwd=REPOSITORY,
                env=os.environ | {"PATH": path},
                stdout=out,
                stderr=subprocess.STDOUT,
                check=False,
            )
        failed += done.returncode != 0
        print(f"  {time.monotonic() - begun:.0f} s, exit {done.returncode}: {kept}", flush=True)
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
