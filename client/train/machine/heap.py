"""Returns memory that the program has freed to the system.

The C library's allocator (glibc) keeps freed memory below the topmost piece that is still in use:
half a gigabyte of unfinished frames, all freed, stayed with the process because of a few bytes that
were allocated after them. Python's own tools do not show it: ``tracemalloc`` and the garbage
collector count it as free. ``malloc_trim`` returns it page by page, within milliseconds.

State: the least resident memory since the last time. Elsewhere than on glibc it does nothing.
"""

import ctypes
from collections.abc import Callable

import psutil
import trio

LOOK_S = 10.0
GROWN_BYTES = 16 * 1024 * 1024
"""Growth below which trimming is not worth its time."""


def resident_bytes() -> int:
    """Return the resident memory of this process."""
    return int(psutil.Process().memory_info().rss)


def trim() -> None:
    """Return freed memory to the system, where the C library can."""
    give_back = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if give_back is not None:
        give_back(0)


async def keep_heap_small(
    resident: Callable[[], int] = resident_bytes, give_back: Callable[[], None] = trim
) -> None:
    """Trim whenever the resident memory has grown, until cancelled."""
    least = resident()
    while True:
        await trio.sleep(LOOK_S)
        now = resident()
        if now > least + GROWN_BYTES:
            give_back()
            least = resident()
        least = min(least, now)
