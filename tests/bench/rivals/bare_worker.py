"""A compute worker that averages and then leaves the optimizer and the version's hash out.

So its rounds end where an averager's do: with the mean's numbers in memory. Everything else is the
worker's own code.
"""

from __future__ import annotations

import sys

from torch import Tensor

from client.compute import worker
from client.compute.averaging import Averager
from client.compute.replies import Applied


def main() -> int:
    """Run the worker."""
    Averager._update = _update
    return worker.main()


def _update(averager: Averager, total: Tensor, squares: float, tokens: int) -> Applied:
    replica = averager._replica
    averager._attempt = None
    replica.advance()
    return Applied(version=replica.version, hash="", grad_norm=0.0)


if __name__ == "__main__":
    sys.exit(main())
