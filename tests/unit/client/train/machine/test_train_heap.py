"""Freed memory goes back to the system, whatever was allocated after it."""

import platform
import sys

import pytest
import trio

from client.train.machine.heap import GROWN_BYTES, LOOK_S, keep_heap_small
from tests.support.cli_process import apart

PINNED = """
import psutil
from client.train.machine.heap import resident_bytes, trim

before = resident_bytes()
pieces, pins = [], []
for _ in range(4000):  # as the Noise messages of frames arrive, each beside something that stays
    pieces.append(bytearray(60_000))
    pins.append(bytearray(1000))
held = resident_bytes() - before
del pieces
kept = resident_bytes() - before
trim()
print(held >> 20, kept >> 20, (resident_bytes() - before) >> 20)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can give it back")
def test_what_the_allocator_keeps_is_given_back() -> None:
    held, kept, left = map(int, apart(sys.executable, "-c", PINNED).stdout.split())
    assert held > 200
    assert kept > held // 2  # otherwise this module is not needed any more
    assert left < 20


async def test_it_is_given_back_when_some_has_come_and_not_all_the_time(
    nursery: trio.Nursery,
) -> None:
    size, given_back = 10**8, list[float]()

    def give_back() -> None:
        nonlocal size
        given_back.append(trio.current_time())
        size -= GROWN_BYTES

    began = trio.current_time()
    nursery.start_soon(keep_heap_small, lambda: size, give_back)
    await trio.sleep(10.5 * LOOK_S)  # between two looks, never at one
    assert not given_back
    size += 2 * GROWN_BYTES
    await trio.sleep(LOOK_S)
    assert len(given_back) == 1
    await trio.sleep(10 * LOOK_S)
    assert len(given_back) == 1  # the rest is in use
    size += GROWN_BYTES + 1
    await trio.sleep(LOOK_S)
    assert len(given_back) == 2
    assert trio.current_time() > began
