"""The types in which weights are saved."""

from typing import Final, Literal

import torch

DType = Literal["fp32", "bf16", "fp16"]
TORCH: Final = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
"""The same as torch names them."""
