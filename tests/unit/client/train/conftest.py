"""Tests of this folder run on virtual time, but those that are marked ``trio(run=trio.run)``."""

import inspect
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock


def run_on_virtual_time(*main: Any, clock: trio.abc.Clock | None, **how: Any) -> Any:
    return trio.run(*main, clock=MockClock(autojump_threshold=0.0), **how)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        here = Path(__file__).parent in item.path.parents
        waits = inspect.iscoroutinefunction(getattr(item, "function", None))
        if here and waits and not item.get_closest_marker("trio"):
            item.add_marker(pytest.mark.trio(run=run_on_virtual_time))


@pytest.fixture
async def swarm(tmp_path: Path) -> AsyncIterator[Any]:
    """A swarm of two stages, without volunteers."""
    from tests.support.train_swarm import open_swarm  # has torch, which few tests need

    async with open_swarm(tmp_path) as opened:
        yield opened
