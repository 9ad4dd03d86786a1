"""Two volunteers beside one process and beside PyTorch's pipelining, in turns on this machine.

    python -m tests.bench.rivals [--repeats N] [--quick] [--out tests/bench/results]

Writes ``rivals.jsonl`` and, from it, ``rivals.md``.
"""

import argparse
import sys
from pathlib import Path

import msgspec

from client.lab.local_swarm import terminate_as_interrupt
from tests.bench.rivals import pipeline, report

OUT = Path(__file__).parents[1] / "results"


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3, help="rounds of turns")
    parser.add_argument("--quick", action="store_true", help="a small model")
    parser.add_argument("--out", type=Path, default=OUT)
    asked = parser.parse_args()
    work = pipeline.QUICK if asked.quick else pipeline.FULL
    with terminate_as_interrupt():
        turns = list(pipeline.measured(work, asked.repeats, say))
    lines = (msgspec.json.encode(turn) + b"\n" for turn in turns)
    asked.out.mkdir(parents=True, exist_ok=True)
    (asked.out / "rivals.jsonl").write_bytes(b"".join(lines))
    (asked.out / "rivals.md").write_text(report.markdown(str(work), turns))
    print(report.summary(turns))


def say(words: str) -> None:
    """Tell how far it is."""
    print(words, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
