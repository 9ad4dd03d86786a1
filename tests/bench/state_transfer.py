"""How fast a newcomer gets a stage's state, from one donor or several, and what training loses.

    python -m tests.bench.state_transfer [--donors 1,2,3] [--up 20] [--down 100] [--rtt 20]
                                         [--runs 1] [--out tests/bench/results]

One stage held by as many volunteers as there are donors, each with one thread, on hosts of a
network laboratory (``tests.netlab``; takes root), training without a pause: a GPT of 2 layers,
width 512, context 128, averaged in S8 over the same lines. A newcomer comes and downloads the state
(parameters and both moments) in chunks from all of them. The line's rate is the least of what all
donors can send and what the newcomer can receive; of that training uses its part, which goes first.
The newcomer's own time is its words "fetched the state". Every run adds a line to
``state_transfer.jsonl``; ``state_transfer.md`` is rewritten from those of this machine.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from client.cli.founding.options import RunChoices
from client.errors import UserError
from client.lab.local_swarm import LocalSwarm, Member, terminate_as_interrupt
from client.store.paths import home_folders, make_private
from tests.bench import wan
from tests.bench.delayed import MODEL, SEQUENCES
from tests.bench.machines import left_out, of_newest, this_machine
from tests.bench.plan_check import wait_until_served
from tests.netlab.lab import Lab
from tests.netlab.table import Host, Link, Table

DONORS = ["a", "b", "c", "d"]
NEWCOMER = "new"
MICROBATCHES = 24
LEFT_OUT, BEFORE = 2, 6
"""Steps that do not count, and steps before the newcomer comes."""
LIMIT_S = 300.0
FETCHED = re.compile(r"fetched the state: ([\d.]+) MB in ([\d.]+) s")


@dataclass(frozen=True)
class Result:
    """One run."""

    donors: int
    up_mbit: float
    down_mbit: float
    rtt_ms: float
    state_mb: float
    seconds: float
    """From the newcomer's question to the last chunk."""
    before_s: float
    """A step before it came, median."""
    during_s: float
    """The mean step that overlaps the download."""
    slowest_during_s: float
    served_s: float
    """From the newcomer's start to its being a replica like the others."""
    load: float
    cores: int
    machine: str = ""

    @property
    def mbit(self) -> float:
        """Of state, Mb/s."""
        return self.state_mb * 8 / self.seconds

    @property
    def line_mbit(self) -> float:
        """The bound of the lines without training."""
        return min(self.donors * self.up_mbit, self.down_mbit)


def main() -> None:
    """Run and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--donors", type=_counts, default=[1, 2, 3])
    parser.add_argument("--up", type=float, default=20.0)
    parser.add_argument("--down", type=float, default=100.0)
    parser.add_argument("--rtt", type=float, default=20.0)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("results"))
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    file = asked.out / "state_transfer.jsonl"
    with terminate_as_interrupt():
        for _, donors in itertools.product(range(asked.runs), asked.donors):
            result = with_donors(donors, asked.up, asked.down, asked.rtt)
            with file.open("a") as out:
                out.write(json.dumps(asdict(result)) + "\n")
            print(f"{result}: {result.mbit / result.line_mbit:.2f} of the lines", flush=True)
            (asked.out / "state_transfer.md").write_text(markdown(read(file)))


def with_donors(donors: int, up: float, down: float, rtt: float) -> Result:
    """Have a newcomer join a stage of so many volunteers."""
    names = DONORS[:donors]
    hosts = {**dict.fromkeys(names, Host(up, down)), NEWCOMER: Host(up, down)}
    run = RunChoices(
        name="transfer",
        stages=1,
        steps=1_000_000,
        sequences=SEQUENCES,
        microbatches=MICROBATCHES,
        redundancy=donors + 1,
        dual_homing=0,
        checkpoint_every=100_000,
        measure=False,
    )
    with (
        tempfile.TemporaryDirectory(prefix="vol") as folder,
        Lab(Table(hosts=hosts, everywhere=Link(rtt_ms=rtt))) as lab,
    ):
        homes = Path(folder)
        for name in hosts:
            make_private(home_folders(homes / name).data)
        wan.found(lab, homes, run, MODEL)
        with LocalSwarm(homes / "x.swarm", homes, homes / "logs") as swarm:
            return _watched(lab, swarm, names, (up, down, rtt))


def _watched(
    lab: Lab, swarm: LocalSwarm, names: Sequence[str], line: tuple[float, float, float]
) -> Result:
    for name in names:
        _start(lab, swarm, name)
    wait_until_served(swarm, 1, len(names))
    first, moments = swarm.members[0], dict[int, float]()
    _watch(first, moments, lambda: len(moments) > LEFT_OUT + BEFORE)
    came = time.time()
    newcomer = _start(lab, swarm, NEWCOMER)
    fetched: list[tuple[float, float, float]] = []
    serves: list[float] = []

    def done() -> bool:
        for event in newcomer.new_events():
            if found := FETCHED.search(event.words):
                fetched.append((event.time, float(found[1]), float(found[2])))
            if "serving from version" in event.words:
                serves.append(event.time)
        return bool(fetched and serves and max(moments.values()) > fetched[0][0])

    _watch(first, moments, done)
    load = round(os.getloadavg()[0], 1)
    for member in swarm.members:  # nothing of theirs is needed: no orderly end
        member.kill()
    ended, state_mb, seconds = fetched[0]
    steps = list(itertools.pairwise(moments[step] for step in sorted(moments)))[LEFT_OUT:]
    before = [end - begin for begin, end in steps if end <= came]
    during = [end - begin for begin, end in steps if end > ended - seconds and begin < ended]
    return Result(
        len(names),
        *line,
        state_mb=state_mb,
        seconds=seconds,
        before_s=round(statistics.median(before), 3),
        during_s=round(statistics.mean(during), 3),
        slowest_during_s=round(max(during), 3),
        served_s=round(serves[0] - came, 1),
        load=load,
        cores=os.cpu_count() or 0,
        machine=this_machine(),
    )


def _start(lab: Lab, swarm: LocalSwarm, host: str) -> Member:
    where = ("--listen-host", lab.address(host), "--listen-port", str(wan.PORT))
    member = swarm.start(host, (*where, "--threads", "1"), within=lab.command(host))
    member.wait_until_it_answers(wan.START_S)
    return member


def _watch(first: Member, moments: dict[int, float], done: Callable[[], bool]) -> None:
    """Note when steps are committed until ``done``."""
    deadline = time.monotonic() + LIMIT_S
    while not done():
        if time.monotonic() > deadline or not first.alive:
            raise UserError(f"{len(moments)} steps: " + first.log_tail())
        for event in first.new_events():
            step = event.data.get("step")
            if event.kind == "StepCommitted" and isinstance(step, int):
                moments.setdefault(step, event.time)
        time.sleep(wan.POLL_S)


def read(path: Path) -> list[Result]:
    """Return all runs so far."""
    return [Result(**json.loads(line)) for line in path.read_text().splitlines()]


def markdown(results: Sequence[Result]) -> str:
    """Return the table: medians over runs of the newest's machine."""
    shown = of_newest(results)
    rows = [
        "| donors | each sends, Mb/s | newcomer receives | RTT ms | runs | state MB | seconds "
        "| Mb/s | of the lines | a step before, s | during (slowest) | it serves after, s |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    cases = sorted({(r.up_mbit, r.down_mbit, r.rtt_ms, r.donors) for r in shown})
    for up, down, rtt, donors in cases:
        case = (up, down, rtt, donors)
        here = [r for r in shown if (r.up_mbit, r.down_mbit, r.rtt_ms, r.donors) == case]
        of = {name: statistics.median(getattr(r, name) for r in here) for name in FIGURES}
        rows.append(
            f"| {donors} | {up:g} | {down:g} | {rtt:g} | {len(here)} | {of['state_mb']:.0f} "
            f"| {of['seconds']:.1f} | {of['mbit']:.0f} | {of['mbit'] / here[0].line_mbit:.2f} "
            f"| {of['before_s']:.2f} | {of['during_s']:.2f} ({of['slowest_during_s']:.2f}) "
            f"| {of['served_s']:.0f} |"
        )
    where = shown[0].machine or f"{shown[0].cores} cores"
    return (
        f"# State for a newcomer\n\nWritten by `python -m tests.bench.state_transfer`. {__doc__}\n"
        f"Machine: {where}, shared by all volunteers and the laboratory. Medians of runs."
        f"{left_out(results, shown)}\n\n" + "\n".join(rows) + "\n"
    )


FIGURES = ("state_mb", "seconds", "mbit", "before_s", "during_s", "slowest_during_s", "served_s")


def _counts(text: str) -> list[int]:
    counts = [int(part) for part in text.split(",")]
    if not all(1 <= count <= len(DONORS) for count in counts):
        raise argparse.ArgumentTypeError(f"1 to {len(DONORS)} donors")
    return counts


if __name__ == "__main__":
    main()
