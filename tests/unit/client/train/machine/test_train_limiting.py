"""The driver of the owner's conditions: it holds, releases, counts, and survives a restart."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import pytest
import trio

from client.config import Settings
from client.errors import UserError
from client.limits.idle import Idleness
from client.limits.power import PowerCap
from client.node.status import limits_view
from client.train.machine.core_sharing import Share
from client.train.machine.limiting import FILE_NAME, LOOK_S, SAVE_EVERY_S, Limiting, Senses
from client.train.machine.pausing import Pauses
from client.train.machine.power import keep_power_cap
from protocol.effects import Explain

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

    async def _idleness(self, after_s: float) -> Idleness:
        self.asked.append(after_s)
        return Idleness(self.idle)


async def test_it_holds_before_anything_begins_and_lets_go_on_time(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    machine = Machine(tmp_path, Settings(schedule="22:00-23:00"))
    async with trio.open_nursery() as nursery:
        await nursery.start(machine.limiting.run)
        assert machine.reason == "outside its hours (22:00-23:00)"
        assert machine.pauses.now is not None
        assert machine.pauses.now.until == datetime(2026, 3, 2, 22).timestamp()
        await machine.pauses.wait_clear()
        assert timedelta() <= machine.now() - datetime(2026, 3, 2, 22) <= timedelta(seconds=LOOK_S)
        await machine.pauses.wait_paused()
        assert timedelta() <= machine.now() - datetime(2026, 3, 2, 23) <= timedelta(seconds=LOOK_S)
        nursery.cancel_scope.cancel()


async def test_the_quota_holds_till_midnight_and_survives_a_restart(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
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
    assert machine.pauses.now is not None
    assert machine.pauses.now.until == datetime(2026, 3, 3).timestamp()
    async with trio.open_nursery() as nursery:
        await nursery.start(again.run)
        await machine.pauses.wait_clear()
        nursery.cancel_scope.cancel()
    assert machine.now().date() == datetime(2026, 3, 3).date()
    assert again.used_bytes == 0


async def test_a_damaged_count_begins_at_nothing(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"\xff{")
    assert Machine(tmp_path, Settings()).limiting.used_bytes == 0


async def test_a_full_disk_stops_nothing(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
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


def test_limits_are_shown() -> None:
    share = Share(threads=1, cores=4, volunteers=3)
    assert limits_view(Settings(), 5, share).when == []
    limits = Settings(
        threads=2, vram_share=50, daily_quota_bytes=GB, power_limit_w=150, only_when_idle=True
    )
    shown = limits_view(limits, 5, share)
    assert (shown.threads, shown.vram_share, shown.compute_share) == (2, 50, 0)
    assert (shown.daily_bytes, shown.used_bytes, shown.power_w) == (GB, 5, 150)
    assert (shown.threads_now, shown.cores, shown.volunteers) == (1, 4, 3)
    assert shown.when == ["idle only"]


class Cap(PowerCap):
    """Remembers; ``refusal`` is why it cannot."""

    def __init__(self, refusal: UserError | None = None) -> None:
        self.refusal, self.log = refusal, list[object]()

    def set(self, watts: int, device: str) -> str:
        if self.refusal is not None:
            raise self.refusal
        self.log.append(watts)
        return "capped"

    def restore(self) -> None:
        self.log.append("restored")


async def test_the_power_cap_is_put_back_when_the_node_ends() -> None:
    said: list[Explain] = []
    cap = Cap()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep_power_cap, 150, "auto", said.append, cap)
        with trio.fail_after(10):
            while not said:
                await trio.sleep(0.01)
        assert cap.log == [150]
        nursery.cancel_scope.cancel()
    assert cap.log == [150, "restored"]


@pytest.mark.parametrize(("watts", "words"), [(0, []), (150, ["only root; run: x"])])
async def test_a_cap_that_cannot_be_set_is_said_and_nothing_else_happens(
    watts: int, words: list[str]
) -> None:
    said: list[Explain] = []
    cap = Cap(UserError("only root", "run: x"))
    with trio.fail_after(10):
        await keep_power_cap(watts, "auto", said.append, cap)
    assert [each.words.removeprefix("the power limit is not set: ") for each in said] == words
    assert [each.level for each in said] == ["error"] * len(words)
    assert cap.log == []


async def test_hours_that_change_hold_from_the_next_look_on(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    machine = Machine(tmp_path, Settings())
    async with trio.open_nursery() as nursery:
        await nursery.start(machine.limiting.run)
        assert machine.pauses.now is None
        machine.limiting.change(Settings(schedule="22:00-23:00"))
        await trio.sleep(LOOK_S + 1)
        assert machine.reason == "outside its hours (22:00-23:00)"
        nursery.cancel_scope.cancel()
