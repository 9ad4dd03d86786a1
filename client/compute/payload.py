"""The layout of a wire payload, and its seal.

A payload is its seal (the BLAKE3 of all that follows), an optional vector of means, and a body.
What it holds is not said in it: codec, direction and shape follow from the manifest, for who sends
and for who receives, and so does its size, which is checked before anything is allocated. Holds no
state, imports no torch: the node seals payloads with it as well.

s8 and s4 bodies: block after block of 128 numbers, each its bf16 scale and then its values; the
last dimension is padded to whole blocks. Of activations of several rows the mean of each (padded)
channel, in bf16, comes before. bf16 and fp32 bodies are the plain little-endian elements. q2, q3
and q4 bodies: chunk after chunk, each its bf16 scales and then its packed numbers; the last chunk
is filled up.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hmac import compare_digest
from typing import Literal, TypeAlias

from blake3 import blake3

from client.compute.errors import Unsealed
from model_zoo.specs.codec import CODECS, Codec

Direction = Literal["forward", "backward", "average"]
Buffer: TypeAlias = bytes | bytearray | memoryview
Payloads: TypeAlias = Sequence[Buffer]

BLOCK = CODECS["s8"].block
SCALE_BYTES = 2
SEAL_BYTES = 32


@dataclass(frozen=True, slots=True)
class Encoding:
    """How a tensor of `shape` lies in a payload of `size_bytes`."""

    codec: Codec
    direction: Direction
    shape: tuple[int, ...]

    @property
    def rotated(self) -> bool:
        """Whether groups of 64 elements were rotated before quantisation."""
        return self.codec in ("s8", "s4") and self.direction != "average"

    @property
    def centred(self) -> bool:
        """Whether a bf16 vector with the mean of each (padded) channel precedes the body."""
        return self.rotated and self.direction == "forward" and len(self.shape) > 1

    @property
    def body_start(self) -> int:
        """Offset of the body in the payload."""
        channels = -(-self.shape[-1] // BLOCK) * BLOCK
        return SEAL_BYTES + SCALE_BYTES * channels * self.centred

    @property
    def size_bytes(self) -> int:
        """Size of the whole payload."""
        return self.body_start + CODECS[self.codec].body_bytes(self.shape)


def seal(buffer: bytearray | memoryview) -> None:
    """Write the payload's digest into its first bytes. Apart from encoding, because hashing costs
    as much; of all digests of 32 bytes this one is cheap enough for what a GPU sends."""
    buffer[:SEAL_BYTES] = _digest(buffer)


def sealed_digest(buffer: Buffer) -> bytes:
    """The digest that a payload is sealed with, whether or not its bytes have it; empty for
    none."""
    return bytes(memoryview(buffer)[:SEAL_BYTES])


def check_seal(buffer: Buffer) -> None:
    """Refuse by `Unsealed` a payload that is damaged or too short: its bytes are not what was
    sealed."""
    if not compare_digest(sealed_digest(buffer), _digest(buffer)):
        raise Unsealed("payload does not match its digest")


def _digest(buffer: Buffer) -> bytes:
    return blake3(memoryview(buffer)[SEAL_BYTES:]).digest()
