"""The driver of the owner's conditions: it holds, releases, counts, and survives a restart."""

from datetime import datetime, timedelta
from pathlib import Path

import trio

from client.config import Settings
from client.train.machine.limiting import LOOK_S, SAVE_EVERY_S, Limiting, Senses
from client.train.machine.pausing import Pauses

GB = 10**9
EVENING = datetime(2026, 3, 2, 21, 0)


class Machine:
    """A machine whose clock is trio's, beginning at nine in the evening."""

    def __init__(self, folder: Path, limits: Settings) -> None:
        self.folder, self.limits = folder, limits
        self.carried, self.idle, self.battery = 0, True, False
        self.asked: list[float] = []
        self._began = trio.current_time()
        self.pauses = Pauses(folder, lambda said: None)
        self.limiting = self.start()

    def start(self) -> Limiting:
        senses = Senses(lambda: self.carried, self.now, self._idleness, lambda: self.battery)
        return Limiting(self.limits, self.folder, self.pauses, senses)

    def now(self) -> datetime:
        return EVENING + timedelta(seconds=trio.current_time() - self._began)

    @property
    def reason(self) -> str:
        return self.pauses.now.reason if self.pauses.now else ""

    async def _idleness(self, after_s: float) -> bool | str:
        self.asked.append(after_s)
        return self.idle


async def test_it_holds_before_anything_begins_and_lets_go_on_time(
    nursery: trio.Nursery, tmp_path: Path
) -> None:
    machine = Machine(tmp_path, Settings(schedule="22:00-23:00"))
    await nursery.start(machine.limiting.run)
    assert machine.reason == "outside its hours (22:00-23:00)"
    assert machine.pauses.now.until == datetime(2026, 3, 2, 22).timestamp()
    await machine.pauses.wait_clear()
    assert timedelta() <= machine.now() - datetime(2026, 3, 2, 22) <= timedelta(seconds=LOOK_S)
    await machine.pauses.wait_paused()
    assert timedelta() <= machine.now() - datetime(2026, 3, 2, 23) <= timedelta(seconds=LOOK_S)


async def test_the_quota_holds_till_midnight_and_survives_a_restart(
    nursery: trio.Nursery, tmp_path: Path
) -> None:
    machine = Machine(tmp_path, Settings(daily_quota_bytes=2 * GB))
    machine.carried = GB  # before the first look: it counts
    with trio.move_on_after(SAVE_EVERY_S + 2 * LOOK_S):
        await machine.limiting.run()
    assert machine.reason == ""
    assert machine.limiting.used_bytes == GB
    machine.carried = 0
    again = machine.start()  # a new process, whose counters begin at nothing
    assert not again.used_up
    machine.carried = GB
    assert again.used_up
    await again.look()
    assert "quota of 2 GB" in machine.reason
    assert machine.pauses.now.until == datetime(2026, 3, 3).timestamp()
    await nursery.start(again.run)
    await machine.pauses.wait_clear()
    assert machine.now().date() == datetime(2026, 3, 3).date()
    assert again.used_bytes == 0


async def test_a_full_disk_stops_nothing(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "gone", Settings(daily_quota_bytes=GB))
    with trio.move_on_after(3 * SAVE_EVERY_S):
        await machine.limiting.run()
    assert machine.reason == ""


async def test_only_what_is_asked_for_is_looked_at(tmp_path: Path) -> None:
    machine = Machine(tmp_path, Settings())
    machine.idle, machine.battery = False, True
    await machine.limiting.look()
    assert (machine.reason, machine.asked) == ("", [])
    assert not machine.limiting.used_up


async def test_idle_and_battery(tmp_path: Path) -> None:
    limits = Settings(only_when_idle=True, idle_after_minutes=10, not_on_battery=True)
    machine = Machine(tmp_path, limits)
    machine.idle, machine.battery = False, True
    await machine.limiting.look()
    assert machine.reason == "on battery; somebody uses this machine"
    machine.battery = False
    await machine.limiting.look()
    assert machine.reason == "somebody uses this machine"
    machine.idle = True
    await machine.limiting.look()
    assert machine.reason == ""
    assert machine.asked == [600] * 3


async def test_the_owners_pause_wins_and_is_not_ended_by_conditions(tmp_path: Path) -> None:
    machine = Machine(tmp_path, Settings(not_on_battery=True))
    machine.pauses.pause(None, "a film")
    machine.battery = True
    await machine.limiting.look()
    assert machine.reason == "a film"
    machine.battery = False
    await machine.limiting.look()
    assert machine.reason == "a film"
    machine.battery = True
    await machine.limiting.look()
    machine.pauses.resume()
    assert machine.reason == "on battery"  # the owner's earlier limits still hold
