"""The table of attacks: every result in ``hostile.jsonl``, in ``hostile.md`` of each attack the run
with the middle share among those of the newest code."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from tests.hostile.attack import MIB, WITHIN_S, Attack
from tests.hostile.scene import Result

FOLDER = Path(__file__).parents[1] / "bench" / "results"
COLUMNS = (
    "attack",
    "what it does",
    "before",
    "at first",
    "then",
    "share",
    "runs: shares",
    "after",
    "memory before, during, after",
    "files before, after",
    "CPU ms a step before, then (ratio)",
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
volunteers shut out, and how many of them did. Of several runs of one code (`--times`) the row has
the one with the middle share, and *runs* has the shares of all; two cores carry all volunteers, the
attacker and whatever else runs there (*others' cores*), so rates vary by a tenth or more, and by
more where others took more. The CPU time that all honest ones together need for a step does not;
its *ratio* to that before is what the attack costs those that it is aimed at, whatever it takes of
the two cores itself.
A stranger runs at the lowest priority (unless `--nice` says another one), because a machine of its
own would not take the swarm's cores; *attacker's cores* shows that it had some. *Cores it costs
each* is what an honest volunteer spends on it: its CPU time *then* beyond that of as many steps
*before*. This depends least on what else runs there.

In most rows everybody is on loopback, where nothing is counted by address: the attacker is worth as
many machines as it has links. In rows named *apart* everybody has a host with a public address of
its own (network namespaces, root), and the attacker is one machine of the internet. In rows named
*newcomer* one of four volunteers is killed 15 s after the attack began, and somebody new comes in
its stead; *noted* says when it was linked with all others, and when it served a stage; the row
`newcomer` is the same without an attack.

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
    """Rewrite the table from the newest results of each attack; return its path."""
    runs: dict[str, list[Result]] = {}
    for result in kept(folder):
        if (before := runs.get(result.attack)) and _code(before[0]) == _code(result):
            before.append(result)
        else:
            runs[result.attack] = [result]
    path = folder / "hostile.md"
    path.write_text(markdown([runs[name] for name in attacks if name in runs], attacks))
    return path


def middle(runs: Sequence[Result]) -> Result:
    """Return the run with the middle share; of an even number the lower one of two."""
    return sorted(runs, key=lambda run: run.share)[(len(runs) - 1) // 2]


def _code(run: Result) -> tuple[str, int]:
    return run.version, run.niceness


def markdown(all_runs: Sequence[Sequence[Result]], attacks: Mapping[str, Attack]) -> str:
    """Return the table; the results of each attack are together."""
    rows = [middle(runs) for runs in all_runs]
    shares = {runs[0].attack: [run.share for run in runs] for runs in all_runs}
    machines = ", ".join(dict.fromkeys(row.machine for row in rows)) or "none yet"
    ordered = sorted(rows, key=lambda row: (row.issue, row.attack))
    head = HEAD.format(within=WITHIN_S, machine=machines)
    rows_of_table = [_line(COLUMNS), _line(["---"] * len(COLUMNS))]
    rows_of_table += [row_of(row, attacks[row.attack], shares[row.attack]) for row in ordered]
    return head + "\n".join(rows_of_table) + "\n"


def row_of(row: Result, attack: Attack, shares: Sequence[float] = ()) -> str:
    """Return one line of the table; ``shares``: those of all its runs."""
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
        f"{len(shares)}: {', '.join(f'{share:.2f}' for share in sorted(shares))}",
        f"{row.rate_after:.2f}",
        ", ".join(f"{size / MIB:.0f}" for size in memory),
        f"{row.files_before}, {row.files_after}",
        _cpu(row),
        f"{row.others_before:.1f}, {row.others_during:.1f}" if row.cpu_before else "",
        f"{row.attacker:.2f}{nice}" if row.attacker else "",
        f"{row.cost_cores:.2f}" if row.attacker else "",
        blamed,
        f"{row.alive} of {row.honest}",
        "; ".join(row.misses(attack)) or "held",
        _noted(row, attack),
        row.version,
    ]
    return _line(cells)


def _cpu(row: Result) -> str:
    if not row.cpu_before:
        return ""
    spent = f"{1000 * row.cpu_before:.0f}, {1000 * row.cpu_during:.0f}"
    return f"{spent} ({row.cpu_share:.2f})"


def _noted(row: Result, attack: Attack) -> str:
    """Return the attacker's word, and how long the volunteer that was restarted took."""
    late = f"not in {attack.returns_within_s:.0f} s"
    linked = f"after {row.linked_s:.0f} s" if row.linked_s else late
    back = f"after {row.back_s:.0f} s" if row.back_s else late
    if attack.returns_within_s:
        return "; ".join(filter(None, (row.noted, f"linked {linked}", f"served {back}")))
    return row.noted


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
