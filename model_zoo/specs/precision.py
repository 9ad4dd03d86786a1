"""The type of numbers in which passes compute; parameters, gradients and updates are fp32 in all.

`bf16` is what graphics cards are fast in: products of matrices and attention are computed in it,
while the hidden state that goes from layer to layer, norms, sums over the vocabulary and losses
stay fp32. Processors without instructions for it are several times slower than in fp32. All
replicas of a run compute in one type, so that audits can tell a lie from rounding.
"""

from __future__ import annotations

from typing import Final, Literal

Precision = Literal["fp32", "bf16"]
DEFAULT: Final[Precision] = "fp32"
SAVED_SHARE: Final[dict[Precision, float]] = {"fp32": 1.0, "bf16": 0.6}
"""What a kept graph has of activations, by what it has in fp32. Measured .54 to .57."""
MATRIX_BYTES: Final[dict[Precision, int]] = {"fp32": 0, "bf16": 2}
"""What a kept graph has of each parameter: its copy in that type, as autograd keeps it."""
