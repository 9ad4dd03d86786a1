"""The type of numbers in which passes compute; parameters, gradients and updates are fp32 in all.

`bf16` is what graphics cards are fast in: products of matrices and attention are computed in it,
while the hidden state that goes from layer to layer, norms, sums over the vocabulary and losses
stay fp32. Processors without instructions for it are several times slower than in fp32. All
replicas of a run compute in one type, so that audits can tell a lie from rounding; where there are
none each may compute in what its device is fast in.
"""

from typing import Final, Literal

Precision = Literal["fp32", "bf16"]
Compute = Literal["fp32", "bf16", "auto"]
"""What a run says of it; `auto`: bf16 on graphics cards that have it, fp32 elsewhere."""
DEFAULT: Final[Precision] = "fp32"
POSSIBLE: Final[dict[Compute, tuple[Precision, ...]]] = {
    "fp32": ("fp32",),
    "bf16": ("bf16",),
    "auto": ("fp32", "bf16"),
}
"""In what machines of a run may compute."""
SAVED_SHARE: Final[dict[Precision, float]] = {"fp32": 1.0, "bf16": 0.6}
"""What a kept graph has of activations, by what it has in fp32. Measured .54 to .57."""
MATRIX_BYTES: Final[dict[Precision, int]] = {"fp32": 0, "bf16": 2}
"""What a kept graph has of each parameter: its copy in that type, as autograd keeps it."""


def precision_on(compute: Compute, *, fast_in_bf16: bool) -> Precision:
    """Return in what a machine computes that may be a card which is fast in bf16."""
    if compute == "auto":
        return "bf16" if fast_in_bf16 else "fp32"
    return compute
