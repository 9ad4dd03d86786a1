"""Initial weights as a pure function of (spec, seed, global parameter name).

No machine hands weights to another at version 0: every replica computes its own and all must
hold the same bits, whatever the cut, the CPU or the torch release. Therefore no torch generator
(its normal numbers go through vectorised logarithms and cosines that differ between CPUs), but
Philox words, integer sums and one fp32 multiplication.

The scheme is nanoGPT's: deviation 0.02, residual projections divided by sqrt(2 layers), gains
one, biases zero. Adapters begin as in `peft`. Narrow boundaries begin with what the embedding says
of a token, and with the first K numbers of the rest.
"""

import math
from hashlib import blake2b

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from model_zoo.specs.model import ModelSpec
from model_zoo.specs.narrow import BOUNDARIES, TABLE

_DEVIATION = 0.02
_CHUNK = 1 << 18  # elements drawn at a time; bounds the scratch to a few MB

# Four uniform 16-bit numbers are added per weight: bell-shaped, cut at 3.46 deviations.
_SUM_MEAN = 2 * 65_535
_SUM_DEVIATION = math.sqrt(4 * (65_536**2 - 1) / 12)


def initial_tensor(spec: ModelSpec, seed: int, name: str, shape: torch.Size) -> Tensor:
    """Return the initial value of parameter `name` of `shape`: an fp32 CPU tensor.

    It depends on `spec`, `seed` and `name` only, not on the cut.
    """
    if name.startswith(BOUNDARIES):
        return _boundary(spec, seed, name, shape)
    if name.endswith((".bias", ".lora_B.weight")):  # an adapter changes nothing at first
        return torch.zeros(shape)
    if len(shape) == 1:  # gain of a norm
        return torch.full(shape, spec.facts.first_gain)
    deviation = _DEVIATION
    if name.endswith(spec.facts.residual_outputs):
        deviation /= math.sqrt(2 * spec.layers)
    if name.endswith(".lora_A.weight"):  # of an adapter: as in peft, whose numbers are uniform
        deviation = 1 / math.sqrt(3 * shape[1])
    return torch.from_numpy(_bell(seed, name, shape.numel(), deviation)).view(shape)


def _boundary(spec: ModelSpec, seed: int, name: str, shape: torch.Size) -> Tensor:
    if not name.endswith(f"{TABLE}.weight"):
        return torch.eye(*shape)  # to the first K of C numbers, and back
    return initial_tensor(spec, seed, spec.token_embedding, shape) * spec.scales.embedding


def empty_embedding(rows: int, width: int) -> nn.Embedding:
    """An embedding (rows, width) whose weights are still to be loaded.

    `nn.Embedding` by itself draws them; on the meta device that makes torch import its compiler,
    which takes longer than opening the stage.
    """
    return nn.Embedding(rows, width, _weight=torch.empty(rows, width))


def _bell(seed: int, name: str, size: int, deviation: float) -> NDArray[np.float32]:
    key = blake2b(f"volunteer init {seed} {name}".encode(), digest_size=16).digest()
    words = np.random.Philox(key=int.from_bytes(key, "little"))
    scale = np.float32(deviation / _SUM_DEVIATION)
    result = np.empty(size, dtype=np.float32)
    for start in range(0, size, _CHUNK):
        raw = words.random_raw(min(_CHUNK, size - start))
        sums = raw.view(np.uint16).reshape(-1, 4).sum(axis=1, dtype=np.int32)
        result[start : start + len(sums)] = (sums - _SUM_MEAN).astype(np.float32) * scale
    return result
