"""The clock of a node counts on while the machine is suspended."""

import sys
import time

import pytest
import trio

from client.clock import NodeClock, read_clock


@pytest.mark.skipif(sys.platform != "linux", reason="the clocks of Linux")
def test_it_is_the_one_that_counts_suspended_time() -> None:
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    now = read_clock()
    assert before <= now <= time.clock_gettime(time.CLOCK_BOOTTIME)


def test_trio_runs_by_it() -> None:
    async def main() -> None:
        began = read_clock()
        await trio.sleep(0.05)
        assert 0.05 <= read_clock() - began < 20
        assert abs(trio.current_time() - read_clock()) < 5
        with trio.move_on_after(0.05) as patience:
            await trio.sleep_forever()
        assert patience.cancelled_caught

    trio.run(main, clock=NodeClock())
