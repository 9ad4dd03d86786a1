"""A process that behaves like ``volunteer join --headless`` to whoever watches it from outside.

Every status asked for is one step of progress. ``FAKE_MODE``: ``stubborn`` ignores SIGTERM,
``failing`` ends at once. It starts a child of its own, as a node starts its worker.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import trio

from client.control.matches import MatchesSnapshot
from client.control.methods import EventBatch, Impossible
from client.control.server import serve_control
from client.control.snapshot import (
    DrainCostView,
    EventView,
    InvitedMember,
    InviteView,
    Membership,
    PauseView,
    ReplicaView,
    SeatView,
    Snapshot,
    StageView,
)
from client.control.sockets import socket_path
from client.control.updates import Curve
from client.events import Entry, RecoveryEvent, StepCommitted
from client.store.paths import runtime_folder
from tests.support.control_fakes import example_invite, example_matches, example_snapshot

STEPS = 40
STAGES = 2


class ScriptedVolunteer:
    """Volunteer n of the names ``volunteer-n`` holds stage n modulo 2."""

    def __init__(self, number: int) -> None:
        self.peer = f"peer-{number}"
        self._number = number
        self._asked = 0
        self._entries: list[Entry] = []
        self.stopped = trio.Event()

    def status(self) -> Snapshot:
        self._asked += 1
        step = min(self._asked, STEPS)
        loss = 5.0 - 3.0 * step / STEPS
        event = StepCommitted(words="", step=step - 1, loss=loss, tokens=step)
        self._append(event)
        if self._asked == STEPS - 2:
            self._append(RecoveryEvent(words="sent again", fault="peer", phase="recovered"))
        return example_snapshot(
            peer=self.peer,
            state="done" if step == STEPS else "training",
            step=step,
            steps=STEPS,
            loss=loss,
            seats=[SeatView(stage=self._number % STAGES, version=step, state="serving")],
            stages=[self._stage(stage, step) for stage in range(STAGES)],
        )

    def _stage(self, stage: int, step: int) -> StageView:
        peers = [f"peer-{n}" for n in range(1, 5) if n % STAGES == stage]
        replicas = [ReplicaView(peer=p, version=step, state="serving", rate=1.0) for p in peers]
        return StageView(stage=stage, layers=2, version=step, replicas=replicas)

    def _append(self, event: StepCommitted | RecoveryEvent) -> None:
        self._entries.append(Entry(len(self._entries) + 1, time.time(), event))

    def matches(self) -> MatchesSnapshot:
        return example_matches()

    def events(self, since: int) -> EventBatch:
        found = [EventView.of(entry) for entry in self._entries if entry.seq > since]
        return EventBatch.of(found, since)

    def finish(self, *, discard: bool = False) -> list[DrainCostView]:
        self.stopped.set()
        return []

    def history(self, points: int) -> Curve:
        return Curve([])

    def pause(self, until: float | None, reason: str, *, discard: bool = False) -> PauseView:
        return PauseView(reason=reason, until=until)

    def resume(self) -> bool:
        return False

    def invite(self, *, once: bool = False, life_s: float | None = None) -> InviteView:
        return example_invite()

    def members(self) -> Membership:
        return Membership(swarm="ab" * 32, swarm_name="open", by_invitation=False, members=[])

    def expel(self, member: str, reason: str) -> InvitedMember:
        raise Impossible("nobody vouches for anybody in this swarm, so nobody is expelled")


async def _serve(home: Path) -> None:
    me = ScriptedVolunteer(int(home.name.rpartition("-")[2]))
    path = socket_path(runtime_folder(home), "ab" * 32, me.peer)
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        async with serve_control(path, me):
            async for _ in signals:
                if os.environ.get("FAKE_MODE") != "stubborn":
                    return


def main() -> None:
    if os.environ.get("FAKE_MODE") == "failing":
        sys.exit("the fake volunteer fails as told")
    home = Path(os.environ["VOLUNTEER_HOME"])
    worker = subprocess.Popen(["sleep", "1000"])
    (home / "worker.pid").write_text(str(worker.pid))
    trio.run(_serve, home)
    worker.kill()


if __name__ == "__main__":
    main()
