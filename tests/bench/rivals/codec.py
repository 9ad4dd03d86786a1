"""Our 8-bit codec beside hivemind's on the same boundary tensors: speed and error.

Each side in a process of its own with one torch thread (hivemind's quantiles use a thread pool of
numpy's besides); GB/s of fp32 numbers. The error is relative to the tensor's norm; with one large
channel also over the other channels alone.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from tests.bench.rivals import environment
from tests.bench.rivals.records import Record, Records, load
from tests.bench.rivals.swarm_of_peers import ONE_THREAD, environ

PART = "codec"
SIDES = ("ours", "hivemind")
LIMIT_S = 300.0
Say = Callable[[str], None]


def measure(records: Records, rounds: int, say: Say, *, quick: bool = False) -> None:
    """Let both sides take turns."""
    repeats = 3 if quick else 7
    for number in range(rounds):
        for side in SIDES:
            if any(r.round == number and r.who.startswith(side) for r in records.of(PART)):
                continue
            say(f"codec, round {number + 1} of {rounds}: {side}")
            try:
                answer = ask(side, repeats)
            except (environment.Missing, subprocess.SubprocessError) as error:
                say(f"  failed: {error}")
                records.note(PART, f"{side}: {error} {getattr(error, 'stderr', '') or ''}".strip())
                continue
            for who, found in answer.items():
                keep(records, who, number, found)


def ask(side: str, repeats: int) -> dict[str, Any]:
    """Have one side measure its codecs."""
    if side != "ours":
        environment.ensure()
    python = sys.executable if side == "ours" else str(environment.PYTHON)
    command = [python, "-m", "tests.bench.rivals.codec_process", side, str(repeats)]
    found = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=True,
        timeout=LIMIT_S,
        env=environ(ONE_THREAD),
    )
    answer: dict[str, Any] = json.loads(found.stdout.splitlines()[-1])
    return answer


def keep(records: Records, who: str, number: int, found: dict[str, Any]) -> None:
    """Record one codec's figures on all tensors, or why there are none."""
    if "failed" in found:
        words = f"{who}: {found['failed'].splitlines()[0]}"
        if words not in records.notes(PART):
            records.note(PART, words)
        return
    busy = round(load(), 2)
    for source, figures in found.items():
        errors = {name: figures[name] for name in ("error", "error_elsewhere")}
        for way in ("encode", "decode"):
            case = f"{way}, {source}"
            records.add(Record(PART, case, who, number, figures[way], "GB/s", busy, errors))
