"""Continues the founder's prompts with each new version of the model, if the owner wants that.

Each time the swarm has saved another version, ``volunteer sample --prompts`` runs as a process of
its own, with one thread and the lowest priority: it takes the newest version that is complete on
this disk, or else copies it from members, and decodes greedily. It rests for
twenty times as long as it took. What it writes is shown on this machine and sent to nobody.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
import trio
from msgspec import Struct

from client.config import ENVIRONMENT_PREFIX
from client.errors import ExitCode
from client.events import SampleWritten
from client.store.persisted import Persisted
from client.store.records import KeptSample
from client.train.reporting.event_sink import EventSink
from protocol.effects import Explain

COMMAND: Final = (sys.executable, "-m", "client.cli.main", "sample", "--prompts", "--json")
LOOK_S: Final = 5.0
SAVED_S: Final = 10.0
"""Seconds from a version's commit until it is likely to be on disk everywhere."""
LIMIT_S: Final = 1800.0
LEAST_REST_S: Final = 60.0
REST: Final = 20
"""Times what the last one took."""
MAX_TEXT: Final = 4000
MOST_VERSIONS: Final = 16
"""Of more, every other one of the older half goes: the first and the newest stay."""


class Written(Struct, frozen=True):
    """What the model wrote to one prompt."""

    prompt: str
    text: str


class PromptSamples(Struct, frozen=True):
    """Answer of ``volunteer sample --prompts --json``."""

    swarm: str
    version: int
    samples: list[Written]


class Sampling:
    """See the module's docstring.

    Args:
        swarm: its id.
        data_dir: the owner's data folder; empty: the usual one.
        kept: file of what was written.
        saved: returns the newest version that the swarm has saved, as far as is known.
        resting: returns whether this machine may not compute now.
        event_sink: tells the owner.
    """

    def __init__(
        self,
        swarm: str,
        data_dir: str,
        kept: Path,
        saved: Callable[[], int],
        resting: Callable[[], bool],
        event_sink: EventSink,
    ) -> None:
        self._swarm, self._data_dir = swarm, data_dir
        self._file: Persisted[list[KeptSample]] = Persisted(kept, list[KeptSample])
        self._saved, self._resting, self._event_sink = saved, resting, event_sink
        self._kept = self._file.peek() or []
        self._failed = ""

    @property
    def newest(self) -> list[KeptSample]:
        """What the newest version wrote to each prompt."""
        version = max((one.version for one in self._kept), default=0)
        return [one for one in self._kept if one.version == version]

    async def run(self) -> None:
        """Sample until cancelled."""
        done = max((one.version for one in self._kept), default=0)
        while True:
            await trio.sleep(LOOK_S)
            due = self._saved()
            if due <= done or self._resting():
                continue
            await trio.sleep(SAVED_S)
            began = trio.current_time()
            if await self._sample():
                done = due
                await trio.sleep(REST * (trio.current_time() - began))
            await trio.sleep(LEAST_REST_S)

    async def _sample(self) -> bool:
        """Let the newest version write; return whether it did. A failure is told once."""
        try:
            with trio.fail_after(LIMIT_S):
                done = await trio.run_process(
                    [*_lowest_priority(), *COMMAND, "--swarm", self._swarm],
                    capture_stdout=True,
                    capture_stderr=True,
                    check=False,
                    env=self._environment(),
                )
        except (OSError, trio.TooSlowError) as error:
            self._tell_failure(str(error) or f"it took more than {LIMIT_S:.0f} s")
            return False
        try:
            found = msgspec.json.decode(done.stdout, type=PromptSamples)
        except msgspec.MsgspecError:
            if done.returncode != ExitCode.TEMPORARY:  # not saved everywhere yet: with a later one
                said = done.stderr.decode(errors="replace").strip().splitlines()
                told = [line for line in said if line.startswith("volunteer: ")] or said
                self._tell_failure(told[-1] if told else f"it ended with {done.returncode}")
            return False
        self._failed = ""
        if self._kept and found.version <= max(one.version for one in self._kept):
            return False  # not saved everywhere yet
        self._take(found)
        return True

    def _take(self, found: PromptSamples) -> None:
        views = [
            KeptSample(
                version=found.version,
                prompt=one.prompt,
                text=one.text[:MAX_TEXT],
                time=time.time(),
            )
            for one in found.samples
        ]
        self._kept = thinned([*self._kept, *views])
        self._file.keep(self._kept)
        for one in views:
            words = f"version {one.version} goes on from {one.prompt[:40]!r}: {one.text[:80]!r}"
            self._event_sink.publish(
                SampleWritten(words=words, version=one.version, prompt=one.prompt, text=one.text)
            )

    def _tell_failure(self, problem: str) -> None:
        if problem != self._failed:
            words = f"no sample could be written: {problem}; it is tried again with a later version"
            self._event_sink.explain(Explain("swarm", words, "warning"))
        self._failed = problem

    def _environment(self) -> dict[str, str]:
        given = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        if self._data_dir:
            given[f"{ENVIRONMENT_PREFIX}DATA_DIR"] = self._data_dir
        return os.environ | given


def _lowest_priority() -> list[str]:
    nice = shutil.which("nice")
    return [nice, "-n", "19"] if nice else []


def thinned(samples: list[KeptSample]) -> list[KeptSample]:
    """Return the samples of at most so many versions, which are in order."""
    versions = sorted({one.version for one in samples})
    if len(versions) <= MOST_VERSIONS:
        return samples
    gone = set(versions[1 : MOST_VERSIONS // 2 : 2])
    return thinned([one for one in samples if one.version not in gone])
