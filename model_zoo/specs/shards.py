"""The files of a data folder and of a cache of leaves, by name and size."""

INDEX = "index.json"
LEAVES = "leaves.bin"
"""The digest of each leaf, one behind the other."""
TOKENIZER = "tokenizer.json"
SHARD_BYTES = 1 << 30
"""Of all shards but the last."""


def shard_name(number: int) -> str:
    """Return the name of the shard of that number."""
    return f"shard-{number:05}.bin"


def shard_sizes(size_bytes: int) -> list[int]:
    """Return the sizes of the shards of so many bytes, in their order."""
    starts = range(0, size_bytes, SHARD_BYTES)
    return [min(SHARD_BYTES, size_bytes - start) for start in starts]


def leaf_name(index: int) -> str:
    """Return the name of a leaf in a cache."""
    return f"{index}.leaf"
