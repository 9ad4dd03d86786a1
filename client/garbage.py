"""When Python's collector of cyclic garbage may look at what is imported: never."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Import in this block what the process needs to its end.

    A large library makes hundreds of thousands of objects that all stay. Without this the collector
    walks over them many times while they are made, a seventh of the time of importing torch, and
    again in each of its full collections.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
