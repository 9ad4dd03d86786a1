"""Runs fewer sequences at a time where a microbatch does not fit in memory.

The sequences of a microbatch are independent: outputs are concatenated and gradients added up, so a
pass in slices differs from a whole one only in the order of sums. The number of sequences that fits
is remembered in the replica; it only ever falls, because a number that did not fit once will not
fit reliably. No state of its own.
"""

import torch

from client.compute.errors import OutOfMemory
from client.compute.replica import Replica


def parts_of(replica: Replica) -> list[slice]:
    """The slices of the sequences [0, B) that are run one after the other."""
    count, size = replica.wire.run.sequences_per_microbatch, replica.sequences_at_once
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]


def halve(replica: Replica, words: str) -> None:
    """Have a pass that ran out of memory, and changed nothing but scratch, run fewer sequences at
    once. Call it when the exception is forgotten, for it keeps the failed pass's memory alive.

    Raises:
        OutOfMemory: not even one sequence fits.
    """
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    elif torch.backends.mps.is_available():
        torch.mps.empty_cache()
    if replica.sequences_at_once <= 1:
        tokens = replica.wire.run.model.context
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
