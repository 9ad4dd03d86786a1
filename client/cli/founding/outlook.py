"""Says before anybody joins how long a run takes, and what memory its stages need.

The seconds are those that the founder's machine was measured with, on one thread; the network costs
nothing here. So it is the least that a run can take: ``volunteer plan`` reckons with lines, GPUs
and more threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from client.cli.founding.price_table import StagePrice
from client.cli.terminal.swarm_text import memory_words
from client.quantities import plural
from client.views.words import duration as human_duration
from protocol.manifest import Manifest

LONG_S: Final = 30 * 86_400.0
"""A run that takes longer at best is founded with a warning."""


def alone_s(manifest: Manifest, prices: Sequence[StagePrice]) -> float | None:
    """Return the seconds of the whole run on one thread of this machine; None: not measured."""
    measured = [price.seconds for price in prices if price.seconds is not None]
    if not measured or len(measured) < len(prices):
        return None
    return manifest.steps * manifest.microbatches_per_step * sum(measured)


def together_s(manifest: Manifest, prices: Sequence[StagePrice]) -> float | None:
    """Return the seconds of the run if every stage has the volunteers that it should have, each
    with one thread like this machine's, and lines cost nothing; None: not measured."""
    measured = [price.seconds for price in prices if price.seconds is not None]
    if not measured or len(measured) < len(prices):
        return None
    in_turn = manifest.microbatches_per_step / manifest.policy.redundancy
    return manifest.steps * in_turn * max(measured)


def outlook(manifest: Manifest, prices: Sequence[StagePrice]) -> Iterator[str]:
    """Yield lines about time and memory."""
    yield f"memory of a volunteer: {memory_words(manifest)}"
    alone, together = alone_s(manifest, prices), together_s(manifest, prices)
    if alone is None or together is None:
        yield "nothing was measured; volunteer plan --swarm says how long the run takes"
        return
    yield (
        f"the run takes {human_duration(alone)} on one thread of this machine, and "
        f"{human_duration(together)} at best with {_volunteers(manifest)}, one thread each; "
        "volunteer plan --swarm reckons with other machines and lines"
    )


def warn_of_time(manifest: Manifest, prices: Sequence[StagePrice]) -> Iterator[str]:
    """Yield a warning if a run takes very long at best."""
    together = together_s(manifest, prices)
    if together is None or together <= LONG_S:
        return
    fitting = max(1, int(manifest.steps * LONG_S / together))
    yield (
        f"with {_volunteers(manifest)} like one thread of this machine the run takes "
        f"{human_duration(together)} at best: --steps {fitting} takes {human_duration(LONG_S)}; "
        "else take a smaller model, or machines with GPUs: volunteer plan says what they make of it"
    )


def _volunteers(manifest: Manifest) -> str:
    each, stages = manifest.policy.redundancy, manifest.stage_count
    where = f"{each} in each of {stages} stages" if stages > 1 else "of one stage"
    return f"{plural(each * stages, 'volunteer')} ({where})"
