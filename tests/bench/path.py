"""Measures the path of a message and of a step: stack depth of a Forward, files of a committed
step.

    python -m tests.bench.path [--list] [--record]

Four volunteers of two stages train in this process, with real compute workers beside it, so that
everything that is counted is of the node. They are linked in memory: TCP is not counted.

- *files*: of ``client/``, ``protocol/`` and ``model_zoo/``, of which a function ran from when every
  replica has closed a step until every replica has closed the next one. Other due work (heartbeats,
  the matching) is included.
- *frames*: of our own code between the network's event in the engine and the pipeline that takes a
  ``Forward``, both included; the most in all steps until then.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import trio

from protocol.pipeline.pipeline import Pipeline
from tests.bench.figures import Figure, add_record_flag, figure, record
from tests.support.train_swarm import open_swarm

ROOT = Path(__file__).parents[2]
OURS = ("client", "protocol", "model_zoo")
FIRST, RECORDED = 3, 7
"""Recorded are so many steps after the first ones: rates are known by then."""


@dataclass(slots=True)
class Recording:
    """Files that ran, and under how many frames each ``Forward`` came to its pipeline."""

    handler: CodeType
    files: Counter[str] = field(default_factory=Counter)
    """Calls by file, of the step that is recorded now."""
    steps: list[Counter[str]] = field(default_factory=list)
    depths: Counter[int] = field(default_factory=Counter)
    deepest: tuple[str, ...] = ()
    _known: dict[str, str | None] = field(default_factory=dict)

    def __call__(self, frame: FrameType, event: str, arg: object) -> None:
        """Note a call; the interpreter's profile function."""
        if event != "call":
            return
        name = self._name(frame.f_code)
        if name is not None:
            self.files[name] += 1
            if frame.f_code is self.handler:
                self._note_depth(frame)

    def _name(self, code: CodeType) -> str | None:
        path = code.co_filename
        if path not in self._known:
            inside = Path(path).is_relative_to(ROOT)
            name = str(Path(path).relative_to(ROOT)) if inside else ""
            self._known[path] = name if name.split("/")[0] in OURS else None
        return self._known[path]

    def _note_depth(self, frame: FrameType) -> None:
        stack = list[str]()
        at: FrameType | None = frame
        while at is not None:
            if self._name(at.f_code) is not None:
                stack.append(at.f_code.co_qualname)
            at = at.f_back
        self.depths[len(stack)] += 1
        if len(stack) >= len(self.deepest):
            self.deepest = tuple(reversed(stack))


@contextmanager
def recording(recorded: Recording) -> Iterator[None]:
    """Record every call in this process, threads that begin meanwhile included."""
    threading.setprofile(recorded)
    sys.setprofile(recorded)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


async def measure(folder: Path) -> Recording:
    """Train with two replicas in each of two stages; record one step."""
    recorded = Recording(Pipeline.forward.__code__)
    choices: dict[str, Any] = {"steps": 4 * (FIRST + RECORDED), "microbatches": 8}
    async with open_swarm(folder, processes=True, **choices) as swarm:
        for stage in (0, 0, 1, 1):
            await swarm.add(stage)

        def all_at(version: int) -> bool:
            return all(v.step(i // 2) >= version for i, v in enumerate(swarm.volunteers))

        await swarm.until(lambda: all_at(0))
        swarm.start()
        with recording(recorded):
            await swarm.until(lambda: all_at(FIRST))
            for _ in range(RECORDED):
                after = 1 + max(v.step(i // 2) for i, v in enumerate(swarm.volunteers))
                recorded.files = Counter()
                await swarm.until(partial(all_at, after))
                recorded.steps.append(recorded.files)
    return recorded


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--list", action="store_true", help="name the files, with their calls")
    add_record_flag(parser)
    choices = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        recorded = trio.run(measure, Path(folder))
    steps = sorted(recorded.steps, key=len)
    usual = steps[len(steps) // 2]
    print(f"files of one committed step: {len(usual)} (median; {len(steps[0])}-{len(steps[-1])})")
    print(f"frames of a Forward: {max(recorded.depths, default=0)}")
    print("  " + " > ".join(recorded.deepest))
    if choices.list:
        for name, calls in sorted(usual.items()):
            print(f"{calls:8} {name}")
    if choices.record:
        record(figures(recorded))


def figures(recorded: Recording) -> list[Figure]:
    """Return the rows of the page."""
    sizes = sorted(map(len, recorded.steps))
    of = {"table": "client", "command": "python -m tests.bench.path", "measures": OURS}
    return [
        figure(
            what="files that one committed step of a 2 x 2 swarm runs through",
            value=f"{sizes[len(sizes) // 2]}",
            spread=f"{sizes[0]}-{sizes[-1]}, {len(sizes)} steps",
            **of,
        ),
        figure(
            what="frames of a `Forward` from the network's event to the pipeline",
            value=f"{max(recorded.depths, default=0)}",
            spread=f"the most of {recorded.depths.total()}",
            **of,
        ),
    ]


if __name__ == "__main__":
    main()
