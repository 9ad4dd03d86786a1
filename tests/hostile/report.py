"""The table of attacks: every result in ``hostile.jsonl``, the newest of each in ``hostile.md``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from tests.hostile.attack import MIB, Attack
from tests.hostile.scene import Result

FOLDER = Path(__file__).parents[1] / "bench" / "results"
COLUMNS = (
    "attack",
    "what it does",
    "before",
    "at first",
    "then",
    "share",
    "after",
    "memory before, during, after",
    "files before, after",
    "CPU ms a step before, then",
    "others' cores before, then",
    "attacker's cores",
    "cores it costs each",
    "blamed",
    "alive",
    "bounds",
    "noted by the attacker",
    "code",
)
HEAD = """# One hostile peer against a swarm of real volunteers

    python -m tests.hostile table [NAME ...]

Rates are in steps per second: before the attack, in its first {within:.0f} s (*at first*), from
then on (*then*), and when the attacker has left. *Share* is *then* against *before*. Memory is the
resident memory of the worst honest node in MiB; file descriptors likewise. *Blamed* is whom honest
volunteers shut out, and how many of them did. One run each; two cores carry all volunteers, the
attacker and whatever else runs there (*others' cores*), so rates vary by a tenth or more, and by
more where others took more. The CPU time that all honest ones together need for a step does not.
A stranger runs at the lowest priority (unless `--nice` says another one), because a machine of its
own would not take the swarm's cores; *attacker's cores* shows that it had some. *Cores it costs
each* is what an honest volunteer spends on it: its CPU time *then* beyond that of as many steps
*before*. This depends least on what else runs there.

Machine: {machine}.

"""


def keep(result: Result, folder: Path = FOLDER) -> None:
    """Append a result."""
    with (folder / "hostile.jsonl").open("ab") as file:
        file.write(msgspec.json.encode(result) + b"\n")


def kept(folder: Path = FOLDER) -> list[Result]:
    """Return all results, oldest first."""
    file = folder / "hostile.jsonl"
    lines = file.read_bytes().splitlines() if file.exists() else []
    return [msgspec.json.decode(line, type=Result) for line in lines]


def write(attacks: Mapping[str, Attack], folder: Path = FOLDER) -> Path:
    """Rewrite the table from the newest result of each attack; return its path."""
    newest = {result.attack: result for result in kept(folder)}
    rows = [newest[name] for name in attacks if name in newest]
    path = folder / "hostile.md"
    path.write_text(markdown(rows, attacks))
    return path


def markdown(rows: Sequence[Result], attacks: Mapping[str, Attack]) -> str:
    """Return the table."""
    machines = ", ".join(dict.fromkeys(row.machine for row in rows)) or "none yet"
    within = max((attack.bounds.within_s for attack in attacks.values()), default=15.0)
    ordered = sorted(rows, key=lambda row: (row.issue, row.attack))
    head = HEAD.format(within=within, machine=machines)
    rows_of_table = [_line(COLUMNS), _line(["---"] * len(COLUMNS))]
    rows_of_table += [row_of(row, attacks[row.attack]) for row in ordered]
    return head + "\n".join(rows_of_table) + "\n"


def row_of(row: Result, attack: Attack) -> str:
    """Return one line of the table."""
    memory = (row.memory_before, row.memory_during, row.memory_after)
    blamed = ", ".join(f"{name} by {count}" for name, count in row.blamed.items()) or "nobody"
    nice = "" if row.niceness == Result.niceness else f" (nice {row.niceness})"
    cells = [
        f"{attack.name} ({attack.issue})",
        attack.what,
        f"{row.rate_before:.2f}",
        f"{row.rate_at_first:.2f}",
        f"{row.rate_during:.2f}",
        f"{row.share:.2f}",
        f"{row.rate_after:.2f}",
        ", ".join(f"{size / MIB:.0f}" for size in memory),
        f"{row.files_before}, {row.files_after}",
        f"{1000 * row.cpu_before:.0f}, {1000 * row.cpu_during:.0f}" if row.cpu_before else "",
        f"{row.others_before:.1f}, {row.others_during:.1f}" if row.cpu_before else "",
        f"{row.attacker:.2f}{nice}" if row.attacker else "",
        f"{row.cost_cores:.2f}" if row.attacker else "",
        blamed,
        f"{row.alive} of {row.honest}",
        "; ".join(row.misses(attack)) or "held",
        row.noted,
        row.version,
    ]
    return _line(cells)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
