"""A virtual clock for volunteers whose files are read and written in threads."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock


@pytest.fixture
def autojump_clock(autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> MockClock:
    """Virtual time that stands still while a thread works.

    Trio takes a loop that waits for a thread for an idle one: the clock would jump on to the next
    deadline, and on a busy disk or processor whole minutes would pass while a file is read.
    """
    run_sync, working = trio.to_thread.run_sync, 0

    async def stand_still(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        nonlocal working
        working += 1
        autojump_clock.autojump_threshold = math.inf
        try:
            return await run_sync(function, *arguments, **options)
        finally:
            working -= 1
            if not working:
                autojump_clock.autojump_threshold = 0.0

    monkeypatch.setattr(trio.to_thread, "run_sync", stand_still)
    return autojump_clock
