"""Records the run that the tests of the terminal interface play: four volunteers, one killed.

Run with ``python -m tests.ui.record``: real processes on this machine, about four minutes. The
recording is what the third volunteer said of itself from its first answer on. On the way one is
killed that alone holds a stage; it comes back later. Thinned to what changes, to stay small.
"""

import math
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec

from client.cli.founding.options import RunChoices
from client.control.snapshot import Snapshot
from client.control.updates import Update
from client.lab.founding import HOST, write_lab
from client.lab.local_swarm import LocalSwarm, Member, terminate_as_interrupt

TARGET = Path(__file__).parent / "data" / "run.jsonl"
FLAGS = ("--listen-host", HOST, "--threads", "1")
NAMES = ("ada", "bela", "cyrus", "dana")
WATCHED = NAMES[2]
LENDS = ("--upload-limit", "20MB/s", "--memory-limit", "2GiB", "--daily-quota", "5GB")
"""Limits of the watched volunteer."""
STEPS = 90
KILL_AT, BACK_AT = 35, 60
LOOK_S = 1.0
TIMEOUT_S = 420.0
CALM = 6
"""Of updates in which only numbers changed, one in ``CALM`` is kept."""
DIGITS = 5


def record(target: Path) -> None:
    """Found a swarm, run it, write what the watched volunteer says."""
    with terminate_as_interrupt(), tempfile.TemporaryDirectory(prefix="volunteer-") as folder:
        homes = Path(folder)
        with LocalSwarm(_found(homes), homes, homes / "logs") as swarm:
            members = {NAMES[0]: swarm.start(NAMES[0], FLAGS)}
            swarm.wait("an answer", members[NAMES[0]].snapshot, 60.0)
            for name in NAMES[1:]:
                members[name] = swarm.start(name, (*FLAGS, *(LENDS if name == WATCHED else ())))
            swarm.wait("an answer", members[WATCHED].snapshot, 60.0)
            write(target, _watch(swarm, members[WATCHED]))


def write(target: Path, updates: Iterable[Update]) -> None:
    """Write a recording, thinned."""
    lines = [msgspec.json.encode(_slim(msgspec.to_builtins(one))) for one in thinned(updates)]
    target.write_bytes(b"\n".join(lines) + b"\n")


def thinned(updates: Iterable[Update]) -> Iterable[Update]:
    """Yield every update in which something happened, a few of the others; no event is lost."""
    held: Update | None = None
    calm, before = 0, ""
    for update in updates:
        if held is not None:
            update = msgspec.structs.replace(update, events=[*held.events, *update.events])
        now = update.snapshot
        outline = str([(s.stage, [(r.peer, r.state) for r in s.replicas]) for s in now.stages])
        outline += now.state + str(sorted(seat.stage for seat in now.seats))
        quiet = outline == before and all(
            event.level in ("debug", "info") for event in update.events
        )
        calm, before = calm + 1, outline
        if quiet and calm < CALM:
            held = update
            continue
        yield update
        held, calm = None, 0
    if held is not None:
        yield held


def _found(homes: Path) -> Path:
    path = homes / "demo.swarm"
    choices = RunChoices(name="demo", steps=STEPS, stages=3, checkpoint_every=15, dual_homing=True)
    write_lab(path, homes / NAMES[0], choices)
    return path


def _alone(swarm: LocalSwarm, watched: Member, now: Snapshot) -> Member | None:
    """Return a volunteer, other than the watched one, that alone serves a stage."""
    serving = [[r.peer for r in one.replicas if r.state == "serving"] for one in now.stages]
    alone = {peers[0] for peers in serving if len(peers) == 1}
    for member in swarm.alive:
        said = member.snapshot() if member is not watched else None
        if said is not None and said.peer in alone:
            return member
    return None


def _watch(swarm: LocalSwarm, watched: Member) -> Iterable[Update]:
    began, back = time.time(), False
    victim: Member | None = None
    while time.time() < began + TIMEOUT_S:
        now, events = watched.snapshot(), watched.new_events()
        if now is None:
            return
        now_at = round(time.time(), 3)
        yield Update(time=now_at, snapshot=now, events=events)
        if victim is None and now.step >= KILL_AT:
            victim = _alone(swarm, watched, now)
            if victim is not None:
                victim.kill()
        if victim is not None and not back and now.step >= BACK_AT:
            back = True
            swarm.start(victim.name, FLAGS, log_name=f"{victim.name}-2")
        if now.state == "done":
            return
        time.sleep(LOOK_S)


def _slim(value: object) -> object:
    """Leave out what decoding fills in again, and digits that nobody sees."""
    if isinstance(value, dict):
        found = {name: _slim(part) for name, part in value.items()}
        if "snapshot" in found:
            found["snapshot"].pop("events", None)  # type: ignore[attr-defined]
        if "hash" in found:
            found["hash"] = str(found["hash"])[:8]
        return {n: part for n, part in found.items() if n not in ("schema_version",)}
    if isinstance(value, list):
        return [_slim(part) for part in value]
    if isinstance(value, float) and value and math.isfinite(value) and abs(value) < 1e9:
        return round(value, DIGITS - 1 - math.floor(math.log10(abs(value))))
    if isinstance(value, float) and math.isfinite(value):
        return round(value, 2)
    return value


if __name__ == "__main__":
    record(Path(sys.argv[1]) if len(sys.argv) > 1 else TARGET)
