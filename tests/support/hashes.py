"""The hash of a version of bytes in memory."""

from client.compute.state_hash import leaf_digest, leaves, root


def state_hash(version: int, *buffers: memoryview) -> str:
    """Return the hex hash of a version whose data are these, in order."""
    return root(version, map(leaf_digest, leaves(buffers)))
