"""Text and tokens as arrays."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
"""Text as UTF-8."""
Tokens = NDArray[np.unsignedinteger[Any]]
