"""How long a round of local steps is, and what it costs in learning.

More rounds cost time, because nothing is computed while a round is averaged. Fewer rounds cost
learning. A run has as many rounds as leave the lowest loss after equal time, within the bounds of
what was measured (`GAPS`). A run that is so long that it has more rounds than that gives averaging
a fixed share of the time. No round is shorter than a step of the exact run.

The replicas' own steps are together as large as a step of the exact run. They are larger where a
round would have more than sixteen, or where they would take more than a tenth of the time. One
replica's own step is never larger than a whole step of the exact run.

The loss is that of small models, with sixteen own steps of Muon a round. It depends on the number
of rounds of a run most of all, and on the number of replicas: each one's own steps are of fewer
tokens then.
"""

import math
from dataclasses import replace
from itertools import pairwise

from client.plan.model import Placement, Prediction, Run, own_step_s, predict
from protocol.limits import MAX_MICROBATCHES_PER_STEP

STEPS_IN_A_ROUND = 16
FEWEST_ROUNDS = 48
"""With fewer nothing is known of the loss, but that it is higher still."""
TOKENS_POWER = 0.14
"""The loss falls as the tokens to the power of minus this: a doubling is worth 9 %."""
LONG_SHARE = 0.07
"""Of computing: how long averaging takes in a run of more rounds than were measured."""
OWN_STEPS_SHARE = 0.1
WORTH_SHARE = 0.1
"""Of a step's time: where exact averaging takes more, local rounds are worth their price."""
GAPS = ((48, 9.3), (96, 5.9), (320, 2.0))
"""Rounds of a run, and by how many per cent the loss on held-out text was higher then than with
exact averaging after as many tokens, in 2 bits a number (`tests/bench/results/learning.md`; means
of two, two and three seeds). With 3 bits it was 1.7 after 320 rounds."""
ENOUGH_ROUNDS = GAPS[-1][0]
"""With more, less is not known to be lost."""
MEASURED_REPLICAS = 4
"""Those of `GAPS`; for fewer they are an upper bound."""
REPLICAS_POWER = 0.75
"""Of the number of replicas in the gap: eight had 1.8 and 2.1 times that of four, after 320 rounds
1.3; sixteen 2.3."""
NARROW_PERCENT = 0.7
"""Of the loss, for boundaries of 4 bits: a small model was fine-tuned with them in three places."""
NOT_MUON = 3.1
"""Times as much with AdamW, after 96 rounds."""


def are_worth_it(exact: Prediction, local: Prediction) -> bool:
    """Whether local rounds are worth their price: exact averaging takes much of the time, and they
    are faster."""
    faster = local.tokens_per_s > exact.tokens_per_s
    return faster and exact.averaging_share > WORTH_SHARE


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
    missed = max(stage.averaging_s for stage in found.stages) / found.microbatch_s
    replicas = max(map(len, placement))

    def loss(rounds: int) -> float:
        slower = 1 + missed * rounds / whole
        return math.pow(slower, TOKENS_POWER) * (1 + gap_percent(rounds, replicas, muon=True) / 100)

    rounds = min(range(FEWEST_ROUNDS, ENOUGH_ROUNDS + 1), key=loss)
    microbatches = whole / rounds
    if rounds == ENOUGH_ROUNDS:
        microbatches = min(microbatches, missed / LONG_SHARE)
    return math.ceil(max(usual, microbatches))


def paced(
    run: Run, placement: Placement, step_tokens: int, tokens: int, microbatches: int | None = None
) -> Run:
    """Return the run with rounds, and own steps in them, that suit its machines and lines.

    Args:
        run: with its stages. `inner_microbatches` stays where it is not 0.
        placement: the replicas of every stage.
        step_tokens: of a step of the exact run.
        tokens: of all the run.
        microbatches: of a round, where they are chosen already.

    Raises:
        ValueError: as `predict`.
    """
    usual = max(1, step_tokens // run.tokens_per_microbatch)
    if microbatches is None:
        whole = max(1, tokens // run.tokens_per_microbatch)
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
    together = usual // replicas
    return max(1, min(max(of_one // STEPS_IN_A_ROUND, together, cheap), usual, of_one))


def gap_percent(rounds: float, replicas: int, *, muon: bool) -> float:
    """Return by how many per cent the loss of a run of so many rounds is higher, with ``muon`` or
    without; beyond the rounds that were measured it is that of the nearest."""
    least, most = GAPS[0][0], GAPS[-1][0]
    rounds = min(max(rounds, least), most)
    times = math.pow(max(1.0, replicas / MEASURED_REPLICAS), REPLICAS_POWER)
    times *= 1.0 if muon else NOT_MUON
    for (fewer, more_loss), (more, less_loss) in pairwise(GAPS):
        if rounds <= more:
            part = math.log(rounds / fewer) / math.log(more / fewer)
            return times * more_loss * math.exp(part * math.log(less_loss / more_loss))
    return times * GAPS[-1][1]
