"""The hash of a version of bytes in memory, and a checkpoint of it."""

from client.compute.checkpoint import CheckpointInfo, build_header
from model_zoo.specs.state import Layout
from model_zoo.specs.state_hash import leaf_digest, leaves, root


def state_hash(version: int, *buffers: memoryview) -> str:
    """Return the hex hash of a version whose data are these, in order."""
    return root(version, map(leaf_digest, leaves(buffers)))


def checkpoint_of(
    swarm: str, stage: int, stages: int, version: int, data: bytes, layout: Layout = ()
) -> bytes:
    """Return a checkpoint with these bytes as weights and two moments; without a layout each is one
    tensor."""
    header = build_header(
        CheckpointInfo(
            swarm=swarm,
            stage=stage,
            stages=stages,
            version=version,
            hash=state_hash(version, memoryview(data)),
            layout=layout or (("weights", (len(data) // 12,)),),
        )
    )
    return header + data
