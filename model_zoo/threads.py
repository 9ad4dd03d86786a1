"""How many CPU threads torch may use, for the length of a `with` block."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def limited_threads(count: int | None) -> Iterator[None]:
    """Let torch use `count` threads inside the block and as many as before after it.

    None leaves the number alone. The number is one per process: do not nest across threads.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(before if count is None else count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
