"""Attack a swarm.

    python -m tests.hostile list               what there is
    python -m tests.hostile table [NAME ...]   try attacks (default: all), each on a swarm made
                                               for it, --times N; write the table
    python -m tests.hostile NAME               try one, print its row

Everything runs on this machine.
"""

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from client.errors import UserError
from client.lab.local_swarm import terminate_as_interrupt
from tests.hostile import report
from tests.hostile.attack import Attack, all_attacks, attack_named
from tests.hostile.scene import Misplaced, Result, Scene

NICE = (
    "how much lower a stranger's priority is than that of the honest ones (19); where others keep "
    "the machine busy, it gets no time at 19, and less shows what it does"
)


def main() -> int:
    """Read the arguments and do it; return the exit code: 1 if a bound does not hold."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.hostile",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", help="list, table, or the name of an attack")
    parser.add_argument("names", nargs="*", help="with table: which")
    parser.add_argument("--logs", type=Path, help="keep the volunteers' logs in this folder")
    parser.add_argument("--times", type=int, default=1, help="runs of each; their middle counts")
    parser.add_argument("--nice", type=int, default=19, help=NICE)
    arguments = parser.parse_intermixed_args()
    try:
        return perform(arguments)
    except UserError as error:
        print(f"hostile: {error}", file=sys.stderr)
        return int(error.exit_code)


def perform(arguments: argparse.Namespace) -> int:
    """Do what the arguments say."""
    if arguments.what == "list":
        for attack in all_attacks().values():
            print(f"{attack.name:29} {attack.issue:6}{attack.what}")
        return 0
    if arguments.what == "table":
        chosen = [attack_named(name) for name in arguments.names] or list(all_attacks().values())
        runs = [attack for attack in chosen for _ in range(arguments.times)]
        missed = [attack.name for attack in runs if not tried(attack, arguments, keep=True)]
        print(report.write(all_attacks()))
        return int(bool(missed))
    return int(not tried(attack_named(arguments.what), arguments, keep=False))


def tried(attack: Attack, how: argparse.Namespace, *, keep: bool) -> bool:
    """Try an attack on a swarm of its own and print its row; return whether all bounds hold."""
    with terminate_as_interrupt():
        result = played(attack, how)
    if keep:
        report.keep(result)
    print(report.row_of(result, attack), flush=True)
    return not result.misses(attack)


def played(attack: Attack, how: argparse.Namespace) -> Result:
    """Play an attack, again with other identities while the attacker gets the wrong stage."""
    logs: Path | None = how.logs
    while True:
        with tempfile.TemporaryDirectory(prefix="hst") as folder:
            try:
                return Scene(attack, Path(folder), how.nice).play()
            except Misplaced:
                print(f"{attack.name}: not in stage {attack.stage}; once more", file=sys.stderr)
            finally:
                if logs is not None:
                    shutil.copytree(Path(folder) / "logs", logs / attack.name, dirs_exist_ok=True)


if __name__ == "__main__":
    sys.exit(main())
