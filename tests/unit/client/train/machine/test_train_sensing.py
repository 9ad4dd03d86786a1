"""GPUs are asked again and again, and never where there is none."""

from __future__ import annotations

from collections.abc import Sequence

import trio
import trio.testing

from client.limits.sensors import Reading
from client.train.machine.sensing import EVERY_S, Sensing


async def test_the_readings_are_the_newest(autojump_clock: trio.testing.MockClock) -> None:
    asked: list[Sequence[str]] = []

    def read(devices: Sequence[str]) -> list[Reading]:
        asked.append(devices)
        return [Reading("cuda:0", power_w=float(len(asked)))]

    sensing = Sensing(["cuda:0"], read)
    with trio.move_on_after(2.5 * EVERY_S):
        await sensing.run()
    assert asked == [["cuda:0"]] * 3
    assert [reading.power_w for reading in sensing.readings] == [3.0]


async def test_a_machine_without_a_driver_is_asked_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    sensing = Sensing(["cpu"], lambda _: [])
    with trio.fail_after(EVERY_S / 2):
        await sensing.run()
    assert sensing.readings == []
