"""``volunteer finish``: says what it costs, asks a person, waits until the volunteer is gone."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest
import trio

from client.control.methods import Impossible
from client.control.server import serve_control
from client.control.snapshot import DrainCostView, Snapshot
from client.control.sockets import socket_path
from client.errors import ExitCode
from client.store.last_run import RunRecord
from client.store.paths import runtime_folder
from tests.support.cli_process import Within
from tests.support.control_fakes import FakeProvider, example_snapshot

LAST = DrainCostView(stage=0, remaining=0, last=True)


class LastReplica(FakeProvider):
    """The only replica of its stage."""

    def status(self) -> Snapshot:
        return example_snapshot(leaving=[LAST])

    def finish(self, *, discard: bool = False) -> list[DrainCostView]:
        self.stops += 1
        return [LAST]


class Terminal(io.StringIO):
    """Somebody who types this."""

    def isatty(self) -> bool:
        return True


async def run(
    home: Path, within: Within, provider: FakeProvider, *arguments: str
) -> tuple[int, str, str]:
    """Run the command beside a node that ends when it is asked to."""
    path = socket_path(runtime_folder(home), "ab" * 32, "12D3KooWexamplepeer")
    async with trio.open_nursery() as nursery:
        async with serve_control(path, provider):

            async def watch() -> None:
                while not provider.stops:
                    await trio.sleep(0.01)
                await trio.sleep(0.1)
                served.cancel()

            with trio.CancelScope() as served:
                nursery.start_soon(watch)
                done: list[tuple[int, str, str]] = []
                ended = trio.Event()

                async def command() -> None:
                    answer = await trio.to_thread.run_sync(within, "finish", *arguments)
                    done.append((answer.returncode, answer.stdout, answer.stderr))
                    ended.set()

                nursery.start_soon(command)
                await ended.wait()
        with trio.fail_after(30):
            await ended.wait()
        nursery.cancel_scope.cancel()
    return done[0]


async def test_it_leaves_and_says_what_becomes_of_the_stages(home: Path, within: Within) -> None:
    provider = FakeProvider()
    code, out, _ = await run(home, within, provider, "--json")
    answer = json.loads(out)
    assert (code, provider.stops) == (0, 1)
    assert answer["schema_version"] == 1
    assert answer["left"] is True
    assert answer["leaving"] == [{"stage": 0, "remaining": 2, "last": False}]


async def test_the_last_replica_asks_a_person(
    home: Path, within: Within, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = LastReplica()
    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    code, _, err = await run(home, within, provider)
    assert (code, provider.stops) == (ExitCode.INTERRUPTED, 0)
    assert "stage 0 would have nobody" in err
    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    assert (await run(home, within, provider))[0] == 0
    assert provider.stops == 1


@pytest.mark.parametrize("arguments", [["--yes"], []])
async def test_nobody_is_asked_who_is_not_there(
    home: Path, within: Within, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    provider = LastReplica()
    monkeypatch.setattr(sys, "stdin", Terminal("n\n") if arguments else io.StringIO(""))
    code, out, _ = await run(home, within, provider, *arguments)
    assert (code, provider.stops) == (0, 1)
    assert "stage 0 would have nobody" in out


def test_without_a_volunteer_there_is_nothing_to_finish(home: Path, within: Within) -> None:
    assert within("finish").returncode == ExitCode.NOT_RUNNING


class Loses(FakeProvider):
    """Its disk does not take the last version; ``late``: it turns out while it leaves."""

    def __init__(self, home: Path, *, late: bool) -> None:
        super().__init__()
        self._record, self._late = RunRecord(home / "data"), late
        self.discarded: list[bool] = []

    def finish(self, *, discard: bool = False) -> list[DrainCostView]:
        self.discarded.append(discard)
        if not self._late and not discard:
            raise Impossible("cannot save version 65 of stage 0; --discard leaves anyway")
        if self._late:
            self._record.end("version 65 of stage 0 could not be saved", "free space", 1)
        return super().finish()


@pytest.mark.parametrize("late", [False, True])
async def test_a_version_that_cannot_be_saved_is_told_and_the_exit_code_is_1(
    home: Path, within: Within, late: bool
) -> None:
    (home / "data").mkdir(mode=0o700)
    provider = Loses(home, late=late)
    code, _, err = await run(home, within, provider, "--yes")
    assert code == ExitCode.RUNTIME
    assert "version 65 of stage 0" in err
    assert provider.stops == late


async def test_discard_leaves_all_the_same(home: Path, within: Within) -> None:
    provider = Loses(home, late=False)
    code, _, _ = await run(home, within, provider, "--yes", "--discard")
    assert (code, provider.discarded) == (ExitCode.OK, [True])
