"""A blob: what is fetched whole, a stage's state or a file, and how its chunks are known.

Its *root* names it, which is the hash of its leaves (``model_zoo.specs.state_hash``). A record, the
manifest or an admission says the root, never a donor. It proves the list of the chunks' digests,
which is fetched like a chunk, and the list proves each chunk, whoever sends them.
"""

from dataclasses import dataclass

from model_zoo.specs.state_hash import DIGEST_BYTES, root
from protocol.limits import CHUNK_BYTES


@dataclass(frozen=True, slots=True)
class Blob:
    """What is wanted, or is here.

    Args:
        root: its hash.
        size_bytes: of the whole.
        stage: of a state: its stage.
        version: of a state: its version; 0: it is another file.
    """

    root: bytes
    size_bytes: int
    stage: int = 0
    version: int = 0

    @property
    def count(self) -> int:
        """Its chunks."""
        return -(-self.size_bytes // CHUNK_BYTES)

    def lists(self, listed: bytes) -> bool:
        """Whether these are the digests of its chunks, one behind the other."""
        whole = len(listed) == DIGEST_BYTES * self.count
        return whole and root(self.version, [listed]) == self.root.hex()


def split(listed: bytes) -> list[bytes]:
    """Return the digests of a list."""
    return [listed[at : at + DIGEST_BYTES] for at in range(0, len(listed), DIGEST_BYTES)]
