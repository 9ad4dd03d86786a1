"""Measures the cost of the terminal interface: seconds to its first screen, share of a core.

Run with ``python -m tests.bench.tui_cost [seconds]``. Starts ``volunteer replay`` in terminals of
two sizes, with the recorded run replayed at the rate of a live node (2 updates a second), and
prints JSON. Compare with the limits only on a machine that has nothing else to do.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from itertools import cycle
from pathlib import Path

import msgspec
import psutil

from client.ui.source.recording import read_header
from tests.ui.playing import RUN, recorded

HZ = 2.0
SIZES = ((80, 24), (200, 60))
SETTLE_S = 3.0
LIMITS = {"start_s": 1.0, "core_percent": 5.0}


def measure(recording: Path, size: tuple[int, int], key: str, seconds: float) -> dict[str, object]:
    """Return start time (seconds) and CPU use (percent of a core) of one run on one tab."""
    control, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
    variables = {
        **os.environ,
        "TERM": "xterm-256color",
        "LANG": "C.UTF-8",
        "COLORTERM": "truecolor",
    }
    begin = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "client.cli.main", "replay", str(recording)],
        stdin=terminal, stdout=terminal, stderr=terminal, env=variables, start_new_session=True,
    )  # fmt: skip
    os.close(terminal)
    try:
        seen = b""
        while b"Dashboard" not in seen:
            seen += _read(control, 30.0)
        start_s = time.monotonic() - begin
        _drain(control, SETTLE_S)
        os.write(control, key.encode())
        _drain(control, 1.0)
        watched = psutil.Process(process.pid)
        before, written = watched.cpu_times(), 0
        began = time.monotonic()
        written = _drain(control, seconds)
        after, span = watched.cpu_times(), time.monotonic() - began
        used = after.user + after.system - before.user - before.system
        return {
            "size": f"{size[0]}x{size[1]}",
            "tab": key,
            "start_s": round(start_s, 2),
            "start_cpu_s": round(before.user + before.system, 2),
            "core_percent": round(100 * used / span, 2),
            "bytes_per_s": round(written / span),
            "rss_mb": round(watched.memory_info().rss / 1e6),
        }
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        os.close(control)


def retold(target: Path, seconds: float) -> None:
    """Write the recorded run, over and over, at the rate of a live node."""
    number = int(seconds * HZ)
    seq = 0
    lines = [msgspec.json.encode(read_header(RUN))]
    for index, update in zip(range(number), cycle(recorded()), strict=False):
        events = []
        for event in update.events:
            seq += 1
            events.append(msgspec.structs.replace(event, seq=seq))
        one = msgspec.structs.replace(update, seq=index, time=index / HZ, events=events)
        lines.append(msgspec.json.encode(one))
    target.write_bytes(b"\n".join(lines) + b"\n")


def _read(control: int, timeout_s: float) -> bytes:
    ready, _, _ = select.select([control], [], [], timeout_s)
    if not ready:
        sys.exit("nothing was drawn in time")
    return os.read(control, 65536)


def _drain(control: int, seconds: float) -> int:
    """Read what is drawn for some time, as a terminal does; return the bytes."""
    end, count = time.monotonic() + seconds, 0
    while (left := end - time.monotonic()) > 0:
        ready, _, _ = select.select([control], [], [], left)
        if ready:
            count += len(os.read(control, 65536))
    return count


def main(seconds: float) -> None:
    """Measure all of it and print it."""
    with tempfile.TemporaryDirectory() as folder:
        recording = Path(folder) / "live.jsonl"
        retold(recording, 2 * seconds + 30)
        runs = [measure(recording, size, key, seconds) for size in SIZES for key in ("1", "6")]
    load = os.getloadavg()[0]
    print(json.dumps({"hz": HZ, "load_average": load, "limits": LIMITS, "runs": runs}, indent=2))


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 20.0)
