"""Encodes and decodes a stage's tensors and tokens: the worker's one place for shapes and codecs.

All input is checked against the shapes of the opened stage. Holds no state.

Shapes: B sequences, T tokens, K numbers of a token at a boundary.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from client.compute.codec import Boundary, begin_decoding, begin_encoding
from client.compute.codecs.blocks import rounding_key
from client.compute.errors import ShapeError, blame
from client.compute.payload import Buffer, Direction, check_seal
from client.compute.readings import Check, Readings
from model_zoo.data import beginnings, inputs_and_targets
from model_zoo.specs.narrow import joined
from model_zoo.specs.tokens import token_bytes, token_dtype, token_values
from protocol.manifest import Manifest

Of: TypeAlias = tuple[int, int]
"""A step and a microbatch."""


class StageInput(NamedTuple):
    """What a stage is run on, and the microbatch's tokens where it has a use for them.

    Fields:
        x: tokens (B, T) int64 on the first stage, else (B, T, K).
        inputs, targets: (B, T) int64; a target that is not learned is `NO_TARGET`.
        begins: with which inputs conversations begin, (B, T) bool on the CPU; None: each sequence
            is one text.
    """

    x: Tensor
    inputs: Tensor | None = None
    targets: Tensor | None = None
    begins: Tensor | None = None

    def of(self, part: slice) -> "StageInput":
        """The same of some sequences."""
        x, *beside = self
        return StageInput(x[part], *(None if each is None else each[part] for each in beside))


@dataclass(frozen=True, slots=True)
class Wire:
    """The shapes and codecs of a run, for one of its stages on a device; the rounding of gradients
    follows from swarm and stage."""

    run: Manifest
    swarm: str
    stage: int
    device: torch.device

    @property
    def boundary_shape(self) -> tuple[int, int, int]:
        """(B, T, K)."""
        model = self.run.model
        return (self.run.sequences_per_microbatch, model.context, model.boundary_width)

    @property
    def _coded_shape(self) -> tuple[int, int, int]:
        shape = self.boundary_shape
        return shape if self.run.model.narrow is None else joined(*shape)

    def boundary_out(
        self,
        tensor: Tensor,
        direction: Direction,
        of: Of = (0, 0),
    ) -> Check[Boundary]:
        """Return the payload of (B, T, K); the rounding of a gradient may follow from what it is
        ``of``.

        Raises:
            PoisonedTensor: the tensor is not finite; here or when it is judged.
        """
        codec, key = self.run.boundary_codec, rounding_key(self.swarm, *of, self.stage)
        return begin_encoding(tensor.reshape(self._coded_shape), codec, direction, key)

    def boundary_in(
        self, payload: Buffer, direction: Direction, part: int, readings: Readings
    ) -> Tensor:
        """Return the tensor (B, T, K) in a payload from another stage, which was not checked; it
        counts if the readings say that it is good. ``part`` is its position in its request, blamed
        if it is bad.

        Raises:
            CodecError: the payload is invalid; here or when the readings are read.
        """
        with blame(part):
            check_seal(payload)
            decoded, good = begin_decoding(
                payload,
                self._coded_shape,
                self.run.boundary_codec,
                direction,
                device=self.device,
            )
        readings.note(replace(good, part=part))
        return decoded.view(self.boundary_shape)

    def segment_out(self, segment: Tensor) -> memoryview:
        """A sealed payload of a part of a gradient sum; empty if the part is. Raises
        `PoisonedTensor`."""
        if segment.numel() == 0:
            return memoryview(b"")
        return begin_encoding(segment, self.run.averaging_codec, "average").now().ready()

    def segment_in(self, payload: Buffer, out: Tensor, part: int) -> None:
        """Decode a part of a gradient sum into `out`, a vector on any device; nothing is read for
        an empty one. Raises `CodecError`; then `out` may have changed."""
        if out.numel():
            with blame(part):
                check_seal(payload)
                self.segment_back(payload, out)

    def segment_back(self, payload: Buffer, out: Tensor) -> None:
        """Decode what `segment_out` of this process has made, whose seal is not checked again."""
        if out.numel():
            codec = self.run.averaging_codec
            begin_decoding(payload, out.shape, codec, "average", out=out)[1].now()

    def tokens_in(self, data: Buffer, x: Tensor | None = None) -> StageInput:
        """Read tokens (B, T+1) as `specs.tokens` has them sent; return the input of a stage, which
        is ``x`` (B, T, K), or the tokens.

        Raises:
            ShapeError: the size is wrong or a token is outside the vocabulary.
        """
        bits, vocab = self.run.data, self.run.model.vocab
        shape = (self.run.sequences_per_microbatch, self.run.model.context + 1)
        if len(data) != token_bytes(vocab, masked=bits.masked) * shape[0] * shape[1]:
            raise ShapeError(f"{len(data)} bytes are not {shape[0]} x {shape[1]} tokens")
        sent = np.frombuffer(data, dtype=token_dtype(vocab, masked=bits.masked)).reshape(shape)
        largest = int(token_values(sent, masked=bits.masked).max())
        if largest >= vocab:
            raise ShapeError(f"token {largest} is outside the vocabulary of {vocab}")
        inputs, targets = (torch.from_numpy(each) for each in inputs_and_targets(sent))
        begins = torch.from_numpy(beginnings(sent)) if bits.masked else None
        inputs, targets = inputs.to(self.device), targets.to(self.device)
        return StageInput(inputs if x is None else x, inputs, targets, begins)
