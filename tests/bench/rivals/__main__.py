"""Ours beside PyTorch's pipelining and hivemind, side by side in one run on this machine.

    python -m tests.bench.rivals [--only pipeline|chain|averaging|codec] [--repeats N] [--quick]
                                 [--fresh] [--out tests/bench/results]

Writes ``rivals.jsonl`` as it goes and ``rivals.md`` from it; an interrupted part continues where it
stopped (``--fresh`` starts over). hivemind is installed into ``.venv-hivemind`` once; without it
its part says so and the others go on.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from client.lab.local_swarm import terminate_as_interrupt
from tests.bench.rivals import averaging, chain, codec, environment, pipeline, report
from tests.bench.rivals.records import Records

OUT = Path(__file__).parents[1] / "results"


@dataclass(frozen=True)
class Part:
    """One comparison; ``measure(records, repeats, say, quick=)`` fills the records."""

    measure: Callable[..., None]
    repeats: int
    hivemind: bool = True


PARTS = {
    pipeline.PART: Part(pipeline.measure, 3, hivemind=False),
    averaging.PART: Part(averaging.measure, 2),
    chain.PART: Part(chain.measure, 2),
    codec.PART: Part(codec.measure, 3),
}


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=list(PARTS), action="append")
    parser.add_argument("--repeats", type=int, help="rounds of every comparison")
    parser.add_argument("--quick", action="store_true", help="small sizes, one round")
    parser.add_argument("--fresh", action="store_true", help="forget what was interrupted")
    parser.add_argument("--out", type=Path, default=OUT)
    asked = parser.parse_args()
    records = Records(asked.out / "rivals.jsonl")
    for name in asked.only or PARTS:
        part = PARTS[name]
        repeats = asked.repeats or (1 if asked.quick else part.repeats)
        settings = {"repeats": repeats, "quick": asked.quick}
        if records.begin(name, settings, versions(part), fresh=asked.fresh):
            say(f"{name}: going on where it stopped")
        begin = time.monotonic()
        with terminate_as_interrupt():
            part.measure(records, repeats, say, quick=asked.quick)
        records.end(name)
        say(f"{name}: {time.monotonic() - begin:.0f} s")
    (asked.out / "rivals.md").write_text(report.markdown(records))
    if plot := report.averaging_plot(records):
        (asked.out / "rivals-averaging.svg").write_text(plot)
    print(report.summary(records))
    say(f"all figures: {asked.out / 'rivals.md'}")


def versions(part: Part) -> dict[str, str]:
    """Return what hivemind's environment has in it, if the part needs it and it can be had."""
    if not part.hivemind:
        return {}
    try:
        return environment.ensure()
    except environment.Missing as missing:
        say(str(missing))
        return {}


def say(words: str) -> None:
    """Tell how far it is."""
    print(words, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
