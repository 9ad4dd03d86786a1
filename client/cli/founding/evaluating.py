"""How a new swarm's versions are evaluated on held-out text."""

from math import ceil

from model_zoo.datasets.corpus import Corpus
from model_zoo.specs.tokens import NOT_LEARNED
from model_zoo.specs.windows import Windows
from protocol.limits import MAX_PATHS
from protocol.manifest import Evaluation, Manifest

MOST_MICROBATCHES = 8
SHARE_OF_STEP = 4
"""An evaluation is a quarter of a step's microbatches at most, so that it ends within the step."""
MOST_COST = 0.005
"""Of the swarm's computing, at the default interval."""
MOST_POINTS = 200
FORWARD_SHARE = 1 / 3
"""Of a microbatch's work, which runs back as well."""


def evaluation(every: int | None, corpus: Corpus, draft: Manifest) -> Evaluation | None:
    """Return how versions of a drafted run are evaluated.

    Args:
        every: steps between them; 0: none is; None: as often as costs little.
        corpus: the data.
        draft: of the run.
    """
    if every == 0:
        return None
    microbatches, sequences = draft.microbatches_per_step, draft.sequences_per_microbatch
    context = draft.model.context
    number = max(1, min(MOST_MICROBATCHES, microbatches // SHARE_OF_STEP))
    windows = corpus.spec.windows(context)
    if isinstance(windows, Windows):  # more of them would be the same again
        number = max(1, min(number, windows.held_out // sequences))
    targets = [corpus.held_out_batch(n, sequences, context)[:, 1:] for n in range(number)]
    cost = FORWARD_SHARE * MAX_PATHS * number / microbatches
    usual = min(draft.steps, max(ceil(cost / MOST_COST), draft.steps // MOST_POINTS))
    return Evaluation(
        every=every or usual,
        microbatches=number,
        tokens=max(1, sum(int((rows < NOT_LEARNED).sum()) for rows in targets)),
        size_bytes=max(1, sum(corpus.bytes_of(rows) for rows in targets)),
    )
