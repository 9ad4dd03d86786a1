"""How long a round of local steps is, and what it costs in learning.

A round has as many microbatches as sixteen steps of the exact run, if that takes three minutes at
most (what a replica has done in a round is lost with it) and a run has a hundred of them; but not
fewer than one such step. Where lines are so slow that averaging would take more than a quarter of
it, it is longer, as far as the run has 48 rounds. A replica's own steps are at most as large as a
step of the exact run, and so large that they take at most a tenth of the time; else there are
sixteen in a round.

The loss is that of small models, with four replicas and sixteen own steps of Muon a round: it
depends on the number of rounds of a run most of all. More replicas cost more.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

from client.plan.model import Placement, Run, own_step_s, predict
from protocol.limits import MAX_MICROBATCHES_PER_STEP

STEPS_IN_A_ROUND = 16
USUAL_S = 180.0
ROUNDS_IN_A_RUN = 100
FEWEST_ROUNDS = 48
"""With fewer nothing is known of the loss, but that it is higher still."""
AVERAGING_SHARE = 0.25
OWN_STEPS_SHARE = 0.1
WORTH_SHARE = 0.1
"""Of a step's time: where exact averaging takes more, local rounds are worth their price."""
GAPS = ((48, 11.4), (96, 6.3), (320, 2.8))
"""Rounds of a run, and by how many per cent the loss on held-out text was higher then than with
exact averaging after as many tokens."""
ENOUGH_ROUNDS = GAPS[-1][0]
"""With more, less is not known to be lost."""
NARROW_PERCENT = 0.7
"""Of the loss, for boundaries of 4 bits: a small model was fine-tuned with them in three places."""
NOT_MUON = 3.1
"""Times as much with AdamW, after 96 rounds."""


def wanted_microbatches(run: Run, placement: Placement, usual: int, whole: int) -> int:
    """Return the microbatches of a round, which may be more than the protocol allows.

    Args:
        run: with its stages; the numbers that are to be chosen do not matter.
        placement: the replicas of every stage.
        usual: microbatches of a step of the exact run.
        whole: microbatches of all the run.

    Raises:
        ValueError: as `predict`.
    """
    found = predict(replace(run, microbatches=usual, inner_microbatches=usual), placement)
    per_s = min(stage.rate_per_s for stage in found.stages)
    averaging_s = max(stage.averaging_s for stage in found.stages)
    long = per_s * averaging_s * (1 - AVERAGING_SHARE) / AVERAGING_SHARE
    least = min(long, whole / FEWEST_ROUNDS)
    most = max(map(len, placement))
    usually = min(STEPS_IN_A_ROUND * usual, USUAL_S * per_s, whole / ROUNDS_IN_A_RUN)
    return math.ceil(max(usual, usually, least, most))


def paced(
    run: Run, placement: Placement, usual: int, whole: int, microbatches: int | None = None
) -> Run:
    """Return the run with rounds, and own steps in them, that suit its machines and lines.

    Args:
        run: with its stages. `inner_microbatches` stays where it is not 0.
        placement: the replicas of every stage.
        usual: microbatches of a step of the exact run.
        whole: microbatches of all the run.
        microbatches: of a round, where they are chosen already.

    Raises:
        ValueError: as `predict`.
    """
    if microbatches is None:
        wanted = wanted_microbatches(run, placement, usual, whole)
        microbatches = min(wanted, MAX_MICROBATCHES_PER_STEP)
    inner = run.inner_microbatches or _inner(run, placement, usual, microbatches)
    return replace(run, microbatches=microbatches, inner_microbatches=inner)


def _inner(run: Run, placement: Placement, usual: int, microbatches: int) -> int:
    """Return the microbatches of one replica between two of its own steps."""
    replicas = max(map(len, placement))
    least = max(
        own_step_s(load, member) * member.flop_per_s / max(load.cost.flops, 1e-30)
        for load, members in zip(run.stages, placement, strict=True)
        for member in members
    )
    of_one = max(1, microbatches // replicas)
    cheap = math.ceil(least * (1 - OWN_STEPS_SHARE) / OWN_STEPS_SHARE)
    return max(1, min(max(of_one // STEPS_IN_A_ROUND, cheap), usual, of_one))


def gap_percent(rounds: float, *, muon: bool) -> float:
    """Return by how many per cent the loss of a run of so many rounds is higher, with ``muon`` or
    without; beyond what was measured it is that of the nearest."""
    least, most = GAPS[0][0], GAPS[-1][0]
    rounds = min(max(rounds, least), most)
    times = 1.0 if muon else NOT_MUON
    for (fewer, more_loss), (more, less_loss) in pairwise(GAPS):
        if rounds <= more:
            part = math.log(rounds / fewer) / math.log(more / fewer)
            return times * more_loss * math.exp(part * math.log(less_loss / more_loss))
    return times * GAPS[-1][1]
