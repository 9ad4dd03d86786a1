"""Transport at the speed of the link: rates and round trips of a link between two processes.

    python -m tests.bench.transport [--parts loopback,line,priority] [--runs 5] [--seconds 3]
                                    [--json tests/bench/results/transport.jsonl] [--record]

loopback: one bulk lane, encrypted, each process on a core of its own (0/1) and both on one (0/0).
line: the same over lines of given rate and length (``tests.netlab``, takes root); a share of 1 is
every byte of TCP payload that the line can carry. priority: the round trip of a control message
while tensors fill the line one way, beside that of an idle link. ``plain`` is TCP without
encryption, as the kernel sets it (``sndbuf``: with a send buffer as large as may be asked for,
``forced``: as root may, ``x4``: four connections), measured in turn with the others. Medians of
the runs, in brackets their range. CPU: ms of either process for a GB of payload.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import select
import statistics
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from client.lab.local_swarm import terminate_as_interrupt
from tests.bench.figures import Figure, add_record_flag, figure, record
from tests.netlab.lab import Lab
from tests.netlab.table import Link, uniform

REPOSITORY = Path(__file__).parents[2]
PEER = (sys.executable, "-m", "tests.bench.transport_peer")
SIZES = (64 * 1024, 512 * 1024, 4 * 1024 * 1024)
LINES = ((100.0, 100.0, 1500), (400.0, 200.0, 9000))
"""Mb/s, round trip in ms, MTU."""
BUSY = (100.0, 50.0, 1500)
LINE_PAYLOAD = 256 * 1024
LINE_S = 8.0
ANSWER_S = 120.0
PLAIN = {
    "plain": ("0", "1"),
    "plain sndbuf": (str(64 * 1024 * 1024), "1"),
    "plain forced": ("-1", "1"),
    "plain x4": ("0", "4"),
}
"""Send buffer and number of connections of each way to use plain TCP."""


@dataclass(frozen=True)
class Result:
    """One case, over all runs."""

    case: str
    what: str
    rate_mb_per_s: list[float] = field(default_factory=list)
    share: list[float] = field(default_factory=list)
    """Of plain TCP on loopback, of what the line can carry elsewhere."""
    trip_ms: list[float] = field(default_factory=list)
    """Median of each run."""
    trip_p95_ms: list[float] = field(default_factory=list)
    sender_cpu_ms: list[float] = field(default_factory=list)
    receiver_cpu_ms: list[float] = field(default_factory=list)
    load: float = 0.0
    machine: str = ""


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", default="loopback,line,priority")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--json", type=Path)
    add_record_flag(parser)
    asked = parser.parse_args()
    parts = {"loopback": loopback, "line": lines, "priority": priority}
    found: list[Result] = []
    with terminate_as_interrupt():
        for part in asked.parts.split(","):
            for result in parts[part](asked.runs, asked.seconds):
                print(words(result), flush=True)
                found.append(result)
                if asked.json is not None:
                    with asked.json.open("a") as file:
                        file.write(json.dumps(asdict(result)) + "\n")
    if asked.record:
        record([row(result, asked.runs) for result in found])


def row(result: Result, runs: int) -> Figure:
    """Return a result's row of the page."""
    trips = [f"round trip {_spread(result.trip_ms, 1)} ms"] if result.trip_ms else []
    rate = [f"**{_spread(result.rate_mb_per_s, 0)} MB/s**"] if any(result.rate_mb_per_s) else []
    part = "loopback" if result.case.startswith("loopback") else "line,priority"
    return figure(
        "codec and transport",
        f"link of two processes, {result.case}: {result.what}",
        "; ".join([*rate, *trips]),
        f"medians of {runs} runs, in brackets their range",
        f"python -m tests.bench.transport --parts {part}",
        ("client/net",),
    )


def loopback(runs: int, seconds: float) -> Iterator[Result]:
    """Measure on loopback, ours and plain TCP in turns."""
    for near, far in (("0", "1"), ("0", "0")):
        cores = (("taskset", "-c", near), ("taskset", "-c", far))
        results = {size: _result(f"loopback, cores {near}/{far}", _words(size)) for size in SIZES}
        for _ in range(runs):
            plain = _plain("plain", "127.0.0.1", *cores, 0.5, seconds)
            for size, result in results.items():
                found = _ours("127.0.0.1", *cores, size, 0.5, seconds, 0.5)
                _add(result, found, plain)
        yield from results.values()


def lines(runs: int, seconds: float) -> Iterator[Result]:
    """Measure over long lines."""
    for mbit, rtt_ms, mtu in LINES:
        carries = mbit / 8 * (mtu - 52) / (mtu + 14)  # IPv4, TCP with timestamps; Ethernet
        warm_s = 2.0 + 30 * rtt_ms / 1e3
        case = f"{mbit:g} Mb/s, {rtt_ms:g} ms"
        ours = _result(case, "one stream")
        plain = {way: _result(case, way) for way in PLAIN}
        with Lab(uniform(["a", "b"], mbit, Link(rtt_ms=rtt_ms), mtu)) as lab:
            ends = (lab.address("b"), tuple(lab.command("a")), tuple(lab.command("b")))
            for _ in range(runs):
                found = _ours(*ends, LINE_PAYLOAD, warm_s, LINE_S, 1.0)
                _add(ours, found, carries)
                for way, result in plain.items():
                    rate = _plain(way, *ends, warm_s, LINE_S)
                    _add(result, {"rate_mb_per_s": rate}, carries)
        yield ours
        yield from plain.values()


def priority(runs: int, seconds: float) -> Iterator[Result]:
    """Measure round trips on an idle link and on one full of tensors."""
    mbit, rtt_ms, mtu = BUSY
    carries = mbit / 8 * (mtu - 52) / (mtu + 14)
    cases = {0: "control, idle", LINE_PAYLOAD: "control, bulk lane full"}
    results = {size: _result(f"{mbit:g} Mb/s, {rtt_ms:g} ms", what) for size, what in cases.items()}
    with Lab(uniform(["a", "b"], mbit, Link(rtt_ms=rtt_ms), mtu)) as lab:
        ends = (lab.address("b"), tuple(lab.command("a")), tuple(lab.command("b")))
        for _ in range(runs):
            for size, result in results.items():
                _add(result, _ours(*ends, size, 3.0, LINE_S, 0.02), carries)
    yield from results.values()


def _ours(
    host: str, near: Sequence[str], far: Sequence[str], size: int, *numbers: float
) -> dict[str, float]:
    """Return what one run of the two processes found."""
    with _serving([*far, *PEER, "serve", host]) as place:
        found = _answer([*near, *PEER, "ask", place, str(size), *map(str, numbers)])
    trips: list[float] = sorted(found.pop("trips_ms"))
    found["trip_ms"] = statistics.median(trips)
    found["trip_p95_ms"] = trips[int(0.95 * (len(trips) - 1))]
    if payload_mb := found["payload_mb"]:
        for end in ("sender", "receiver"):
            found[f"{end}_cpu_ms"] = 1e6 * found[f"{end}_cpu_s"] / payload_mb
    return found


def _plain(
    way: str, host: str, near: Sequence[str], far: Sequence[str], warm_s: float, seconds: float
) -> float:
    """Return MB/s of plain TCP."""
    buffer, streams = PLAIN[way]
    with _serving([*far, *PEER, "plain-serve", host]) as place:
        command = [*near, *PEER, "plain-ask", place, buffer, str(warm_s), str(seconds), streams]
        return float(_answer(command)["rate_mb_per_s"])


@contextmanager
def _serving(command: Sequence[str]) -> Iterator[str]:
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY) as process:
        try:
            assert process.stdout is not None
            if not select.select([process.stdout], [], [], ANSWER_S)[0]:
                raise TimeoutError(f"{command} says nothing")
            yield process.stdout.readline().strip()
        finally:
            process.kill()


def _answer(command: Sequence[str]) -> dict[str, Any]:
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=REPOSITORY, timeout=ANSWER_S, check=True
    )
    return dict(json.loads(done.stdout))


def _result(case: str, what: str) -> Result:
    model = [
        line for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line
    ]
    congestion = Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()
    machine = (
        f"{os.cpu_count()} cores, {model[0].split(':')[1].strip() if model else platform.machine()}"
        f", {platform.system()} {platform.release()}, Python {platform.python_version()}"
        f", TCP {congestion}"
    )
    return Result(case, what, load=round(os.getloadavg()[0], 1), machine=machine)


def _add(result: Result, found: dict[str, float], of_mb_per_s: float) -> None:
    for name in ("rate_mb_per_s", "trip_ms", "trip_p95_ms", "sender_cpu_ms", "receiver_cpu_ms"):
        if name in found:
            getattr(result, name).append(round(found[name], 2))
    result.share.append(round(found["rate_mb_per_s"] / of_mb_per_s, 4))


def words(result: Result) -> str:
    """Return a result as a row of the table."""
    cells = [f"{result.case:24} {result.what:24}"]
    if any(result.rate_mb_per_s):
        cells.append(f"{_spread(result.rate_mb_per_s, 1)} MB/s, share {_spread(result.share, 3)}")
    if result.trip_ms:
        trips = f"{_spread(result.trip_ms, 1)} ms, p95 {_spread(result.trip_p95_ms, 1)} ms"
        cells.append(f"trip {trips}")
    if result.sender_cpu_ms:
        spent = f"{_spread(result.sender_cpu_ms, 0)} + {_spread(result.receiver_cpu_ms, 0)}"
        cells.append(f"CPU {spent} ms/GB")
    return "; ".join([*cells, f"load {result.load}"])


def _spread(figures: Iterable[float], digits: int) -> str:
    found = sorted(figures)
    ends = f"({found[0]:.{digits}f} to {found[-1]:.{digits}f})"
    return f"{statistics.median(found):.{digits}f} {ends}"


def _words(size: int) -> str:
    return f"payloads of {size // 1024} KiB"


if __name__ == "__main__":
    main()
