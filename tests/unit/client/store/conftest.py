"""Whatever happens to a file, it is closed."""

import gc
import os
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _nothing_stays_open() -> Iterator[None]:
    before = len(os.listdir("/dev/fd"))
    yield
    if len(os.listdir("/dev/fd")) > before:
        gc.collect()  # a map of a file may be in a cycle
    assert len(os.listdir("/dev/fd")) <= before, "fewer are garbage of an earlier test"
