"""A virtual clock for volunteers whose files are read and written in threads."""

import math
import os
from collections.abc import Callable
from typing import Any

import pytest
import trio
from trio._core import _run
from trio.testing import MockClock

TURNS = int(os.environ.get("TEST_TURNS", "0"))
"""In which order tasks run that could run at once; another number is another order."""


@pytest.fixture
def autojump_clock(autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> MockClock:
    """Virtual time that stands still while a thread works; whose turn it is depends on the test.

    Trio takes a loop that waits for a thread for an idle one: the clock would jump on to the next
    deadline, and on a busy disk or processor whole minutes would pass while a file is read. It also
    shuffles the tasks that can run, so that each run of a test would be another one.
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
    _run._r.seed(TURNS)
    return autojump_clock
