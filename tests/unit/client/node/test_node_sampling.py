"""Samples of the founder's prompts: by a process of its own, kept, and a failure told once."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from client.errors import ExitCode
from client.events import EventLog, LogLine, SampleWritten
from client.node import sampling
from client.node.sampling import MOST_VERSIONS, Sampling, thinned
from client.store.persisted import Persisted
from client.store.records import KeptSample
from client.train.reporting.event_sink import EventSink

PROGRAM = """
import json, pathlib, sys
assert sys.argv[1:] == ["--swarm", "ab"], sys.argv
told = pathlib.Path({folder!r}) / "version"
version = told.read_text()
if version == "none yet":
    sys.exit({temporary})
if version == "broken":
    print("volunteer: the disk is full", file=sys.stderr)
    print("  free space", file=sys.stderr)
    sys.exit(1)
samples = [{{"prompt": "def ", "text": "f(): \\x1b[31m" + version}}]
print(json.dumps({{"swarm": "ab", "version": int(version), "samples": samples}}))
"""


@pytest.fixture
def says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """A program in the place of ``volunteer sample``; call it with what it is to say."""
    program = tmp_path / "program.py"
    text = PROGRAM.format(folder=str(tmp_path), temporary=int(ExitCode.TEMPORARY))
    program.write_text(text)
    monkeypatch.setattr(sampling, "COMMAND", (sys.executable, str(program)))
    for name in ("LOOK_S", "SAVED_S", "LEAST_REST_S", "REST"):
        monkeypatch.setattr(sampling, name, 0.01)
    return (tmp_path / "version").write_text  # type: ignore[return-value]


class Run:
    """A volunteer that lets the model write."""

    def __init__(self, kept: Path) -> None:
        self.sink, self.saved, self.resting = EventSink(EventLog(), lambda event: None), 0, False
        self.sampling = Sampling(
            "ab", "", kept, lambda: self.saved, lambda: self.resting, self.sink
        )

    def said(self) -> list[str]:
        entries = self.sink.log.since(0).entries
        return [entry.event.words for entry in entries if isinstance(entry.event, LogLine)]

    def written(self) -> list[int]:
        entries = self.sink.log.since(0).entries
        return [e.event.version for e in entries if isinstance(e.event, SampleWritten)]


async def until(happened: Callable[[], object]) -> None:
    with trio.fail_after(120):
        while not happened():
            await trio.sleep(0.01)


async def test_each_saved_version_writes_once(
    tmp_path: Path, says: Callable[[str], None], nursery: trio.Nursery
) -> None:
    run = Run(tmp_path / "kept" / "ab.json")
    nursery.start_soon(run.sampling.run)
    says("50")
    assert run.sampling.newest == []
    run.saved = 50
    await until(lambda: run.written() == [50])
    says("100")
    run.saved = 100
    await until(lambda: run.written() == [50, 100])
    (newest,) = run.sampling.newest
    assert (newest.version, newest.prompt) == (100, "def ")
    kept = Persisted(tmp_path / "kept" / "ab.json", list[KeptSample]).read()
    assert [one.version for one in kept or ()] == [50, 100]
    assert [one.version for one in Run(tmp_path / "kept" / "ab.json").sampling.newest] == [100]


async def test_a_version_that_is_not_complete_yet_is_tried_again(
    tmp_path: Path, says: Callable[[str], None], nursery: trio.Nursery
) -> None:
    run = Run(tmp_path / "ab.json")
    says("none yet")
    run.saved = 50
    nursery.start_soon(run.sampling.run)
    await trio.sleep(0.1)
    says("50")
    await until(lambda: run.written() == [50])
    assert run.said() == []


async def test_a_failure_is_told_once_and_training_goes_on(
    tmp_path: Path, says: Callable[[str], None], nursery: trio.Nursery
) -> None:
    run = Run(tmp_path / "ab.json")
    says("broken")
    run.saved = 50
    nursery.start_soon(run.sampling.run)
    await until(run.said)
    says("50")
    await until(lambda: run.written() == [50])
    (told,) = run.said()
    assert told.startswith("no sample could be written: volunteer: the disk is full")


async def test_while_this_machine_may_not_compute_nothing_is_written(
    tmp_path: Path, says: Callable[[str], None], nursery: trio.Nursery
) -> None:
    run = Run(tmp_path / "ab.json")
    says("50")
    run.saved, run.resting = 50, True
    nursery.start_soon(run.sampling.run)
    await trio.sleep(0.2)
    assert run.written() == []
    run.resting = False
    await until(lambda: run.written() == [50])


def test_many_versions_are_thinned_and_the_ends_stay() -> None:
    kept: list[KeptSample] = []
    for version in range(100):
        kept = thinned([*kept, KeptSample(version, "p", "t", 0.0)])
    versions = [one.version for one in kept]
    assert len(versions) <= MOST_VERSIONS
    assert versions[0] == 0
    assert versions[-4:] == [96, 97, 98, 99]
