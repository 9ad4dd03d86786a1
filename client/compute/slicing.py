"""Runs fewer sequences at a time where a microbatch does not fit in memory.

The sequences of a microbatch are independent: outputs are concatenated and gradients added up, so a
pass in slices differs from a whole one only in the order of sums. The number of sequences that fits
is remembered in the replica; it only ever falls, because a number that did not fit once will not
fit reliably. No state of its own.
"""

from collections.abc import Callable
from typing import TypeVar

import torch

from client.compute.errors import OutOfMemory
from client.compute.replica import Replica

Result = TypeVar("Result")


def parts_of(replica: Replica) -> list[slice]:
    """The slices of the sequences [0, B), as far as they are ours, that are run one after the
    other."""
    own, size = replica.team.rows(replica.wire.sequences), replica.sequences_at_once
    starts = range(own.start, own.stop, size)
    return [slice(start, min(start + size, own.stop)) for start in starts]


def within_memory(replica: Replica, run: Callable[[], Result]) -> Result:
    """Call `run` with ever fewer sequences at once until it has memory enough.

    `run` must change nothing but scratch when it fails. The kept graphs are given up: all of them
    can be recomputed.

    Raises:
        OutOfMemory: not even one sequence fits.
    """
    while True:
        try:
            return run()
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            words = str(error).partition("\n")[0]
        if replica.team.size > 1:  # the others wait in the midst of the pass: all begin anew
            raise OutOfMemory(f"a rank lacks memory: {words}")
        # Only here: the exception kept the failed pass's memory alive.
        replica.drop_graphs()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        elif torch.backends.mps.is_available():
            torch.mps.empty_cache()
        if replica.sequences_at_once <= 1:
            tokens = replica.wire.tokens
            raise OutOfMemory(
                f"not even one sequence of {tokens} tokens fits in memory beside stage "
                f"{replica.part.index}: {words}"
            )
        replica.sequences_at_once = -(-replica.sequences_at_once // 2)


def is_out_of_memory(error: Exception) -> bool:
    """Whether the device or the host could not give the memory that was needed."""
    if isinstance(error, MemoryError | torch.cuda.OutOfMemoryError | OutOfMemory):
        return True
    # The allocators of the CPU and of Apple's GPUs have no exception types of their own.
    words = "allocate memory", "MPS backend out of memory"
    return isinstance(error, RuntimeError) and any(each in str(error) for each in words)
