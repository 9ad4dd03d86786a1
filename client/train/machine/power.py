"""Holds the GPU's power cap while the node runs; says so when it cannot."""

from __future__ import annotations

from collections.abc import Callable

import trio

from client.errors import UserError
from client.limits.power import PowerCap
from protocol.effects import Explain


async def keep_power_cap(
    watts: int, device: str, explain: Callable[[Explain], None], cap: PowerCap | None = None
) -> None:
    """Cap the GPU's power until cancelled; return at once without a limit or if it cannot be set.

    Args:
        watts: the owner's limit; 0: none.
        device: torch's name of the device.
        explain: gets the result in words.
        cap: sets the cap; None: NVIDIA's driver.
    """
    if not watts:
        return
    cap = cap or nvidia_cap()
    try:
        words = await trio.to_thread.run_sync(cap.set, watts, device)
    except UserError as error:
        hint = f"; {error.next_step}" if error.next_step else ""
        explain(Explain("swarm", f"the power limit is not set: {error}{hint}", "error"))
        return
    try:
        explain(Explain("swarm", words))
        await trio.sleep_forever()
    finally:
        cap.restore()


def nvidia_cap() -> PowerCap:
    """Return the cap of NVIDIA's library."""
    import pynvml

    return PowerCap(pynvml)
