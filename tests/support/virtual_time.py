"""Threads on virtual time: the clock would jump to the next deadlines while all wait for one."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import trio


async def at_once(function: Callable[..., Any], *arguments: Any, **_how: Any) -> Any:
    """Call a function in place of a thread."""
    await trio.lowlevel.checkpoint()
    return function(*arguments)


@contextmanager
def threads_at_once() -> Iterator[None]:
    """Have no threads: what a busy machine does slowly takes no virtual time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trio.to_thread, "run_sync", at_once)
        yield
