"""Members whose worker computes something else than it should, and that sign it like honest work.

A distorted message contradicts what its sender has committed to in an audited run; these do not.
"""

from tests.hostile.attack import Attack

WHAT = {
    "gradients x -10": "A replica multiplies each microbatch's gradients, also those that it "
    "returns, by -10.",
    "gradients x -1": "A replica turns each microbatch's gradients round.",
    "gradients x 1.02": "A replica makes each microbatch's gradients 2 % too large.",
    "random gradients": "A replica learns another text's order: its gradients are noise.",
    "nothing computed": "A replica answers at once with gradients of zero and a loss of 2.5.",
    "contribution x -10": "A replica multiplies what it contributes to each sum by -10.",
    "contribution zero": "A replica contributes nothing to each sum.",
    "huge contribution": "A replica contributes numbers of 1e13 to each sum.",
}
FALSE_SUM = Attack(
    name="false-sum",
    issue="sums",
    what="One of three replicas broadcasts its segments' sums times -10.",
    work="false sums",
    stages=1,
    stage=0,
    honest=2,
)
"""Everybody applies the sum that a segment's owner broadcasts."""
COMPUTED = tuple(
    Attack(
        name=f"work-{lie.replace(' -', ' minus ').replace(' ', '-')}",
        issue="17",
        what=what,
        work=lie,
    )
    for lie, what in WHAT.items()
)
ATTACKS = (*COMPUTED, FALSE_SUM)
