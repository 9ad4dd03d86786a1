"""What each protection costs, beside what it hides: audits, a robust rule, secret sums.

    python -m tests.bench.security [--runs 3] [--most N] [--steps 60]
                                   [--out tests/bench/results] [--record]

The demo's model in two stages with three volunteers each, one thread each, on this
machine: once without protections and once with each of ``WAYS``, in turns. Secret sums need a
private swarm with four volunteers a stage, so they are compared with a private swarm of that size
without protections; secret sums of buckets, which a robust rule compares, need eight. Measured
from the moment when all serve to the end of the run: tokens a second, bytes on the wire and CPU of
all nodes and workers; then the model's loss on text that it was not trained on. All volunteers
share the cores, so tokens a second show what the CPU costs; ``taskset -c 0`` before the command
leaves the other cores to other programs. In a run of so few steps all members are new, and new
members are audited four times as often as the budget says: a long run's audits cost less.

What the tensors between stages show of the text is the same in every row, because none of these
protections touches them: in S8 the share was 0.93 (``results/retired.md``).

A run takes two to five minutes; what was measured before stays, and ``--most`` ends after so many.
Writes ``security.jsonl`` and ``security.md``.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil

from client.cli.commands.create import sign, with_ticket, write_swarm_file
from client.cli.founding.manifest import found_swarm
from client.cli.founding.options import ModelChoices, OptimizerChoices, RunChoices
from client.cli.reach.home import free_port
from client.lab.local_swarm import (
    LocalSwarm,
    Member,
    environment,
    terminate_as_interrupt,
    volunteer_command,
)
from client.store.identity import ensure_identity
from client.store.paths import home_folders, make_private
from protocol.address import Address
from protocol.manifest import Manifest
from tests.bench import figures
from tests.bench.machines import left_out, of_newest, this_machine

STAGES = 2
START_S, RUN_S = 240.0, 420.0
MOST_OTHERS = 0.25
"""Share of the cores that other programs may take; a run with more is measured again."""
AT_LEAST = 20
"""Steps with all six, below which a run says nothing."""
SHOWN = "0.93"
"""Share of the tokens that a boundary in S8 shows."""
HOST = "127.0.0.1"
FLAGS = ("--listen-host", HOST, "--threads", "1", "--seats", "1")


@dataclass(frozen=True)
class Way:
    """A swarm: what ``create`` is asked for, and how many volunteers hold each stage."""

    choices: dict[str, Any] = field(default_factory=dict)
    replicas: int = 3
    beside: str = "off"
    """The way without protections that it is compared with."""

    @property
    def names(self) -> tuple[str, ...]:
        """The volunteers, the founder first."""
        return tuple(f"v{number}" for number in range(1, STAGES * self.replicas + 1))


OFF_OF_FOUR, OFF_OF_EIGHT = "off, four a stage", "off, eight a stage"
WAYS: Final[dict[str, Way]] = {
    "off": Way(),
    "audits of 3 %": Way({"audit": 3}),
    "centred clipping": Way({"aggregation": "centred-clipping"}),
    OFF_OF_FOUR: Way({"private": True}, 4, OFF_OF_FOUR),
    "secret sums": Way({"private": True, "aggregation": "secure"}, 4, OFF_OF_FOUR),
    OFF_OF_EIGHT: Way({"private": True}, 8, OFF_OF_EIGHT),
    "secret sums of fours, clipped": Way(
        {"private": True, "aggregation": "secure-clipping"}, 8, OFF_OF_EIGHT
    ),
}
HIDES: Final = {
    "secret sums": "each member's contribution, not their sum",
    "secret sums of fours, clipped": "each member's contribution, not the sums of fours",
}
"""What a way hides that the others show."""
TABLE = "security"
COMMAND = "python -m tests.bench.security"
MEASURES = (
    "protocol/audit",
    "protocol/seat",
    "protocol/rounds",
    "protocol/secrecy",
    "client/compute/aggregation",
    "client/compute/auditing.py",
    "client/train/stage",
)


@dataclass(frozen=True)
class Result:
    """One run."""

    way: str
    steps: int
    tokens_per_s: float = 0.0
    wire_bytes_per_step: float = 0.0
    """Sent by all volunteers together."""
    cpu_s_per_1000: float = 0.0
    """CPU seconds of all nodes and workers, per 1,000 microbatches of the run."""
    held_out_loss: float = 0.0
    audits: int = 0
    """Drawn by all volunteers."""
    others: float = 0.0
    """Share of the cores that other programs took meanwhile."""
    machine: str = ""


@dataclass(frozen=True)
class Moment:
    """What the volunteers have used up to a step."""

    step: int
    at: float
    cpu_s: float
    busy_s: float
    """CPU seconds of all programs on our cores."""
    sent_bytes: int


# --- overhead -------------------------------------------------------------------------------


def overhead(homes: Path, way: str, steps: int) -> Result:
    """Train a swarm to its last step."""
    manifest = found(homes, way, steps)
    with LocalSwarm(homes / "x.swarm", homes, homes / "logs") as swarm:
        names = WAYS[way].names
        members = [start(swarm, names[0])]
        members[0].wait_until_it_answers(60.0)
        members += [start(swarm, name) for name in names[1:]]
        try:
            wait_until(lambda: all_serve(members[0], WAYS[way].replicas), START_S, members)
            begin = moment(members)
            wait_until(lambda: step_of(members) >= steps, RUN_S, members)
            end = moment(members)
            audits = sum(drawn(member) for member in members)
            loss = held_out_loss(homes / names[0])
        finally:
            for member in members:
                member.kill()
    done = end.step - begin.step
    if done < AT_LEAST:
        raise SystemExit(f"only {done} steps with all volunteers: give more --steps")
    tokens = manifest.tokens_per_microbatch * manifest.microbatches_per_step
    return Result(
        way,
        done,
        tokens_per_s=round(done * tokens / (end.at - begin.at), 1),
        wire_bytes_per_step=round((end.sent_bytes - begin.sent_bytes) / done),
        cpu_s_per_1000=round(
            1000 * (end.cpu_s - begin.cpu_s) / (done * manifest.microbatches_per_step), 2
        ),
        held_out_loss=round(loss, 4),
        audits=audits,
        others=round(others(begin, end), 2),
        machine=where(),
    )


def where() -> str:
    """Return the machine, and how many of its cores we may use if not all."""
    ours = len(cores())
    return this_machine() + ("" if ours == os.cpu_count() else f", on {ours} of them")


def others(begin: Moment, end: Moment) -> float:
    """Return the share of the cores that other programs took."""
    theirs = end.busy_s - begin.busy_s - (end.cpu_s - begin.cpu_s)
    return max(0.0, theirs) / (len(cores()) * (end.at - begin.at))


def found(homes: Path, way: str, steps: int) -> Manifest:
    """Found the swarm with the first volunteer as its founder."""
    founder = ensure_identity(make_private(home_folders(homes / WAYS[way].names[0]).data))
    choices: dict[str, Any] = {
        "name": "security",
        "stages": STAGES,
        "redundancy": WAYS[way].replicas,
        "steps": steps,
        "checkpoint_every": steps,
        "dual_homing": False,
        "measure": False,
    }
    run = RunChoices(**{**choices, **WAYS[way].choices})
    manifest = found_swarm(founder.peer, run, ModelChoices(), OptimizerChoices()).manifest
    address = Address("ip4", HOST, free_port(HOST), founder.peer)
    swarm = sign(manifest, founder, (address,))
    if manifest.policy.private:
        folders = home_folders(homes / WAYS[way].names[0])
        swarm = with_ticket(swarm, founder, folders.vouches(swarm.swarm))
    write_swarm_file(homes / "x.swarm", swarm)
    return manifest


def start(swarm: LocalSwarm, name: str) -> Member:
    """Start a volunteer with one thread and one stage."""
    return swarm.start(name, FLAGS)


def wait_until(happened: Callable[[], bool], within_s: float, members: Sequence[Member]) -> None:
    """Look ten times a second; exit if it does not happen."""
    deadline = time.monotonic() + within_s
    while not happened():
        if time.monotonic() > deadline or not all(member.alive for member in members):
            tails = "\n".join(f"{member.name}: {member.log_tail(3)}" for member in members)
            raise SystemExit(f"the run did not go on for {within_s:.0f} s:\n{tails}")
        time.sleep(0.1)


def all_serve(member: Member, replicas: int) -> bool:
    """Whether every stage has all its replicas and the swarm trains."""
    now = member.snapshot()
    if now is None or now.step < 1:
        return False
    counts = [sum(r.state == "serving" for r in stage.replicas) for stage in now.stages]
    return counts == [replicas] * STAGES


def step_of(members: Sequence[Member]) -> int:
    """Return the newest step that anybody knows of."""
    return max((now.step for member in members if (now := member.snapshot())), default=0)


def moment(members: Sequence[Member]) -> Moment:
    """Return what was used up to now."""
    seen = [member.snapshot() for member in members]
    sent = sum(now.network.sent_bytes for now in seen if now)
    step = max((now.step for now in seen if now), default=0)
    busy = psutil.cpu_times(percpu=True)
    busy_s = sum(busy[core].user + busy[core].nice + busy[core].system for core in cores())
    return Moment(step, time.monotonic(), sum(map(cpu_s, members)), busy_s, sent)


def cores() -> set[int]:
    """Return the cores that we may use."""
    return os.sched_getaffinity(0)


def cpu_s(member: Member) -> float:
    """Return the CPU seconds of a node and its worker."""
    node = psutil.Process(member.process.pid)
    spent = 0.0
    for process in (node, *node.children(recursive=True)):
        with suppress(psutil.Error):
            times = process.cpu_times()
            spent += times.user + times.system
    return spent


def drawn(member: Member) -> int:
    """Return how many audits a volunteer has made."""
    now = member.snapshot()
    return now.audits.today.drawn if now and now.audits else 0


def held_out_loss(home: Path) -> float:
    """Return the loss of the finished model."""
    command = [*volunteer_command(), "export", "--out", str(home / "model"), "--json"]
    done = subprocess.run(
        command, env=environment(home), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"the model cannot be measured: {done.stderr}")
    loss: float = json.loads(done.stdout)["held_out_loss"]
    return loss


# --- running --------------------------------------------------------------------------------


def main() -> None:
    """Measure what is missing, and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=3, help="of each way, on this machine")
    parser.add_argument("--most", type=int, default=1000, help="runs of this call")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("results"))
    figures.add_record_flag(parser)
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    file = asked.out / "security.jsonl"
    for way in list(missing(read(file), asked.runs))[: asked.most]:
        with terminate_as_interrupt(), tempfile.TemporaryDirectory(prefix="sec") as folder:
            homes = Path(folder)
            result = overhead(homes, way, asked.steps)
        with file.open("a") as out:
            out.write(json.dumps(asdict(result)) + "\n")
        print(result, flush=True)
    results = read(file)
    if results:
        (asked.out / "security.md").write_text(markdown(results))
    if asked.record:
        figures.record(list(rows(quiet(of_newest(results)))))


def missing(done: Sequence[Result], runs: int) -> Iterator[str]:
    """Return the runs that this machine lacks, the ways in turns."""
    here = quiet([result for result in done if result.machine == where()])
    for number in range(runs):
        for way in WAYS:
            if sum(one.way == way for one in here) <= number:
                yield way


def quiet(results: Sequence[Result]) -> list[Result]:
    """Return the runs that other programs have hardly disturbed."""
    return [result for result in results if result.others <= MOST_OTHERS]


def read(path: Path) -> list[Result]:
    """Return all runs so far."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [Result(**json.loads(line)) for line in lines]


# --- page -----------------------------------------------------------------------------------

COLUMNS: Final[dict[str, tuple[Callable[[Result], float], str]]] = {
    "tokens/s": (lambda one: one.tokens_per_s, ",.0f"),
    "MB on the wire a step": (lambda one: one.wire_bytes_per_step / 1e6, ".2f"),
    "CPU s per 1,000 microbatches": (lambda one: one.cpu_s_per_1000, ".1f"),
    "held-out loss": (lambda one: one.held_out_loss, ".4f"),
}


def medians(shown: Sequence[Result], way: str) -> dict[str, float]:
    """Return the medians of a way by column."""
    here = [one for one in shown if one.way == way]
    return {name: statistics.median(map(read, here)) for name, (read, _) in COLUMNS.items()}


def beside_off(shown: Sequence[Result], way: str) -> list[str]:
    """Return the medians of a way by column, with their ratios to the way that it is beside."""
    beside = WAYS[way].beside
    ratios = way != beside and beside in measured(shown)
    off = medians(shown, beside) if ratios else {}
    return [
        f"{value:{COLUMNS[name][1]}}" + (f" ({value / off[name]:.2f} x)" if ratios else "")
        for name, value in medians(shown, way).items()
    ]


def measured(shown: Sequence[Result]) -> list[str]:
    """Return the ways that were measured, in the order of ``WAYS``."""
    ways = {one.way for one in shown}
    return [way for way in WAYS if way in ways]


def markdown(results: Sequence[Result]) -> str:
    """Return the page: medians of the newest's machine, with their ratios to no protection."""
    shown = quiet(of_newest(results))
    ways = measured(shown)
    head = ["protection", "runs", *COLUMNS, "audits", "tokens that a boundary shows", "hides"]
    lines = [f"| {' | '.join(head)} |", "| --- | ---: |" + " ---: |" * (len(head) - 3) + " --- |"]
    for way in ways:
        here = [one for one in shown if one.way == way]
        cells = beside_off(shown, way)
        audits = f"{statistics.median(one.audits for one in here):g}"
        lines.append(
            f"| {way} | {len(here)} | {' | '.join(cells)} | {audits} | {SHOWN} "
            f"| {HIDES.get(way, 'nothing')} |"
        )
    return (
        f"# Security overhead against privacy gain\n\nWritten by `{COMMAND}`. {__doc__}\n"
        f"Machine: {results[-1].machine}. Medians; in brackets the ratio to no protection. Runs of "
        f"which other programs took more than {MOST_OTHERS:.0%} of the cores do not count."
        f"{left_out(results, of_newest(results))}\n\n" + "\n".join(lines) + "\n"
    )


def rows(shown: Sequence[Result]) -> Iterator[figures.Figure]:
    """Return the rows of the page of all benchmarks."""
    for way in measured(shown):
        here = [one for one in shown if one.way == way]
        value = "; ".join(beside_off(shown, way))
        rates = [one.tokens_per_s for one in here]
        spread = f"medians of {len(here)} runs; tokens/s {min(rates):,.0f} to {max(rates):,.0f}"
        yield figures.figure(TABLE, way, f"{value}; {SHOWN}", spread, COMMAND, MEASURES)


if __name__ == "__main__":
    main()
