"""Whether volunteers of one machine share its cores well by themselves: tokens/s, in turns.

    python -m tests.bench.threads [--volunteers 1,2,4] [--models tiny,wide] [--choices default,1,2]
                                  [--rounds 3] [--seconds 15] [--out tests/bench/results]
                                  [--record]

Real processes on this machine, each with a home of its own: one stage for one volunteer, two stages
for more. In every round each choice of ``--threads`` runs once in a swarm of its own, one after the
other; ``default`` leaves the choice to the volunteers. The table gives the default's tokens/s over
those of the best choice by hand, as the median over the rounds. ``wide`` is a GPT of 8 layers,
width 256, context 256.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from client.cli.commands.create import sign, write_swarm_file
from client.cli.founding.manifest import found_swarm
from client.cli.founding.options import ModelChoices, OptimizerChoices, RunChoices
from client.cli.reach.home import free_port
from client.lab.local_swarm import LocalSwarm, Member, terminate_as_interrupt
from client.store.identity import ensure_identity
from client.store.paths import home_folders, make_private
from protocol.address import Address
from tests.bench.figures import Figure, add_record_flag, figure, record
from tests.bench.machines import left_out, of_newest, this_machine

HOST = "127.0.0.1"
DEFAULT = "default"
MODELS: Mapping[str, tuple[ModelChoices, int | None, int | None]] = {
    "tiny": (ModelChoices(), None, None),
    "wide": (ModelChoices(layers=8, width=256, heads=8, context=256), 4, 8),
}
"""Shape, sequences of a microbatch, microbatches of a step; None: as in the preset tiny."""
WARM_UP_STEPS = 2
LEAST_STEPS = 3
TIMEOUT_S = 240.0


@dataclass(frozen=True)
class Result:
    """One run."""

    model: str
    volunteers: int
    choice: str
    round: int
    tokens_per_s: float
    steps: int
    others: float
    """Cores that other programs took meanwhile."""
    machine: str = ""


def main() -> None:
    """Run and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    words = lambda text: text.split(",")  # noqa: E731
    parser.add_argument("--volunteers", type=words, default=["1", "2", "4"])
    parser.add_argument("--models", type=words, default=list(MODELS))
    parser.add_argument("--choices", type=words, default=[DEFAULT, "1", "2"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("results"))
    add_record_flag(parser)
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    file = asked.out / "threads.jsonl"
    begun = max((r.round for r in read(file)), default=-1) + 1 if file.exists() else 0
    with terminate_as_interrupt():
        for number in range(begun, begun + asked.rounds):
            for model in asked.models:
                for volunteers in map(int, asked.volunteers):
                    for choice in asked.choices:
                        result = measure(model, volunteers, choice, number, asked.seconds)
                        with file.open("a") as out:
                            out.write(json.dumps(asdict(result)) + "\n")
                        print(result, flush=True)
    (asked.out / "threads.md").write_text(markdown(read(file)))
    if asked.record:
        record(figures([run for run in read(file) if run.round >= begun]))


def measure(model: str, volunteers: int, choice: str, number: int, seconds: float) -> Result:
    """Run one swarm for so long after its first steps."""
    with tempfile.TemporaryDirectory(prefix="vol") as folder:
        homes = Path(folder)
        tokens = found(homes, model, stages=min(volunteers, 2))
        flags = ("--listen-host", HOST, *(() if choice == DEFAULT else ("--threads", choice)))
        with LocalSwarm(homes / "bench.swarm", homes, homes / "logs") as processes:
            first = processes.start("volunteer-1", flags)
            first.wait_until_it_answers(60.0)
            for i in range(2, volunteers + 1):
                processes.start(f"volunteer-{i}", flags)
            moments, others = step_moments(processes, first, volunteers, seconds)
    span, steps = moments[-1] - moments[0], len(moments) - 1
    return Result(
        *(model, volunteers, choice, number),
        tokens_per_s=round(tokens * steps / span, 1),
        steps=steps,
        others=round(others, 2),
        machine=this_machine(),
    )


def found(homes: Path, model: str, stages: int) -> int:
    """Found the swarm whose file and first home lie in ``homes``; return a step's tokens."""
    shape, sequences, microbatches = MODELS[model]
    run = RunChoices(
        name="threads",
        stages=stages,
        steps=100_000,
        sequences=sequences,
        microbatches=microbatches,
        measure=False,
    )
    founder = ensure_identity(make_private(home_folders(homes / "volunteer-1").data))
    manifest = found_swarm(founder.peer, run, shape, OptimizerChoices()).manifest
    swarm = sign(manifest, founder, (Address("ip4", HOST, free_port(HOST), founder.peer),))
    write_swarm_file(homes / "bench.swarm", swarm)
    return manifest.microbatches_per_step * manifest.tokens_per_microbatch


def step_moments(
    processes: LocalSwarm, first: Member, volunteers: int, seconds: float
) -> tuple[list[float], float]:
    """Return when steps were committed, in Unix seconds, once all serve and have warmed up; and the
    cores that other programs took meanwhile.

    Raises:
        RuntimeError: too few steps in time, or a volunteer ended.
    """
    moments: list[float] = []
    deadline, until, begun = time.monotonic() + TIMEOUT_S, None, False
    before = 0.0, 0.0
    while until is None or time.monotonic() < until or len(moments) <= LEAST_STEPS:
        if time.monotonic() > deadline or not all(m.alive for m in processes.members):
            tails = "\n".join(member.log_tail() for member in processes.members)
            raise RuntimeError(f"{len(moments)} steps in {TIMEOUT_S:.0f} s:\n{tails}")
        found = [event.time for event in first.new_events() if event.kind == "StepCommitted"]
        begun = begun or _all_serve(first, volunteers)
        moments += found if begun else []
        if until is None and len(moments) > WARM_UP_STEPS:
            until = time.monotonic() + seconds
            moments, before = moments[-1:], (_others_s(), time.monotonic())
        time.sleep(0.1)
    others_s, span_s = _others_s() - before[0], time.monotonic() - before[1]
    return moments, max(0.0, others_s / span_s)


def _others_s() -> float:
    """Processor seconds of all but this program and its volunteers, since some moment."""
    total = psutil.cpu_times()
    busy = total.user + total.nice + total.system + total.irq + total.softirq + total.steal
    family = [psutil.Process(), *psutil.Process().children(recursive=True)]
    return busy - sum(own.user + own.system for own in (p.cpu_times() for p in family))


def _all_serve(first: Member, volunteers: int) -> bool:
    now = first.snapshot()
    if now is None:
        return False
    replicas = [replica for stage in now.stages for replica in stage.replicas]
    return len({each.peer for each in replicas if each.state == "serving"}) == volunteers


def read(path: Path) -> list[Result]:
    """Return all runs so far."""
    return [Result(**json.loads(line)) for line in path.read_text().splitlines()]


def markdown(results: Sequence[Result]) -> str:
    """Return the table: medians over rounds of the newest's machine."""
    shown = of_newest(results)
    choices = sorted({r.choice for r in shown}, key=lambda c: (c != DEFAULT, c))
    by_hand = [choice for choice in choices if choice != DEFAULT]
    rows = [
        f"| model | volunteers | {' | '.join(map(_title, choices))} "
        "| default / best by hand | rounds | others, cores |",
        f"| --- | ---: | {'---: | ' * len(choices)}---: | ---: | ---: |",
    ]
    for model, volunteers in dict.fromkeys((r.model, r.volunteers) for r in shown):
        here = [r for r in shown if (r.model, r.volunteers) == (model, volunteers)]
        rates = {c: _median(r.tokens_per_s for r in here if r.choice == c) for c in choices}
        best = max(by_hand, key=lambda c: rates[c])
        ratios = sorted(_ratios(here, best))
        ratio = f"**{statistics.median(ratios):.2f}** ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        rows.append(
            f"| {model} | {volunteers} | {' | '.join(f'{rates[c]:,.0f}' for c in choices)} "
            f"| {ratio} | {len(ratios)} | {statistics.median(r.others for r in here):.1f} |"
        )
    return (
        f"# Threads of volunteers on one machine\n\nWritten by `python -m tests.bench.threads`. "
        f"{__doc__}\nMachine: {shown[0].machine}. Tokens/s, medians; the ratio is taken within "
        f"each round, in brackets its range; the last column says what other programs took of the "
        f"machine meanwhile.{left_out(results, shown)}\n\n" + "\n".join(rows) + "\n"
    )


def figures(results: Sequence[Result]) -> list[Figure]:
    """Return the rows of the page: the default's rate over the best choice by hand."""
    found = []
    for model, volunteers in dict.fromkeys((r.model, r.volunteers) for r in results):
        here = [r for r in results if (r.model, r.volunteers) == (model, volunteers)]
        choices = {r.choice for r in here} - {DEFAULT}
        best = max(choices, key=lambda c: _median(r.tokens_per_s for r in here if r.choice == c))
        ratios = sorted(_ratios(here, best))
        found.append(
            figure(
                "speed of training",
                f"volunteers of one machine that share its cores, over the best choice of "
                f"`--threads` by hand: {volunteers}, model {model}",
                f"{statistics.median(ratios):.2f} x",
                f"{ratios[0]:.2f}-{ratios[-1]:.2f}, {len(ratios)} rounds",
                "python -m tests.bench.threads",
                ("client", "model_zoo", "protocol"),
            )
        )
    return found


def _ratios(results: Sequence[Result], best: str) -> list[float]:
    """The default's rate over that of the best choice, round by round."""
    of = {(r.choice, r.round): r.tokens_per_s for r in results}
    rounds = sorted({r.round for r in results})
    return [of[DEFAULT, n] / of[best, n] for n in rounds if {(DEFAULT, n), (best, n)} <= of.keys()]


def _median(values: object) -> float:
    found = list(values)  # type: ignore[call-overload]
    return statistics.median(found) if found else 0.0


def _title(choice: str) -> str:
    return choice if choice == DEFAULT else f"--threads {choice}"


if __name__ == "__main__":
    main()
