"""Says how often a run reads its data, and of a mixture the share of each part."""

from collections.abc import Iterator, Sequence

from model_zoo.specs.data import DataSpec
from model_zoo.specs.mixture import Part
from model_zoo.specs.windows import training_windows
from protocol.manifest import Manifest

MANY_TIMES = 4
"""Read more often than this, a text teaches less than a new one would (N. Muennighoff et al.,
"Scaling Data-Constrained Language Models", 2023)."""
_SHOWN = 8


def shares(parts: Sequence[Part]) -> list[float]:
    """Return the share of each part in what is read, from 0 to 1."""
    total = sum(part.weight for part in parts)
    return [part.weight / total for part in parts]


def times(data: DataSpec) -> list[float]:
    """Return how often each part is read while as many tokens are read as the mixture has."""
    sizes = [data.part_tokens(part) for part in data.parts]
    return [
        share * sum(sizes) / size for share, size in zip(shares(data.parts), sizes, strict=True)
    ]


def describe_mixture(manifest: Manifest, steps: float) -> str:
    """Return a line about the parts and how many epochs of each a run of so many steps reads;
    empty: no mixture."""
    epochs = _epochs(manifest, steps)
    said = [
        f"{part.name} {share:.2%}, {count:.3g} epochs"
        for part, share, count in zip(
            manifest.data.parts, shares(manifest.data.parts), epochs, strict=True
        )
    ]
    return f"a mixture of {_several(said, '; ')}" if said else ""


def warn_of_repeats(manifest: Manifest, steps: float) -> Iterator[str]:
    """Yield a warning if the data, or parts of a mixture, are read many times in so many steps."""
    if manifest.data.parts:
        yield from repeats(manifest.data.parts, _epochs(manifest, steps), "in this run")
        return
    tokens, count = _tokens(manifest, steps), times_read(manifest, steps)
    if count <= MANY_TIMES:
        return
    enough = max(1, int(steps * MANY_TIMES / count))
    yield (
        f"the run reads {tokens:,.0f} tokens, and the text has {tokens / count:,.0f} to train on: "
        f"it is read {count:,.1f} times; beyond {MANY_TIMES} times that teaches less than new "
        f"text: give it {count / MANY_TIMES:,.1f} times as much, or --steps {enough}"
    )


def times_read(manifest: Manifest, steps: float) -> float:
    """Return how often so many steps read the data that train."""
    context = manifest.model.context
    return _tokens(manifest, steps) / context / training_windows(manifest.data.tokens, context)


def _tokens(manifest: Manifest, steps: float) -> float:
    return steps * manifest.tokens_per_step


def repeats(parts: Sequence[Part], counts: Sequence[float], when: str) -> Iterator[str]:
    """Yield a warning if parts are read many times.

    Args:
        parts: of a mixture.
        counts: how many times each is read.
        when: in words.
    """
    both = zip(parts, counts, strict=True)
    many = [f"{part.name} {count:,.1f} times" for part, count in both if count > MANY_TIMES]
    if many:
        yield (
            f"{when} these parts are read more than {MANY_TIMES} times: {_several(many, ', ')}; "
            "that teaches less than new text: give them more text or less weight"
        )


def _epochs(manifest: Manifest, steps: float) -> list[float]:
    per_step = manifest.microbatches_per_step * manifest.sequences_per_microbatch
    return manifest.data.epochs(steps * per_step, manifest.model.context)


def _several(words: Sequence[str], between: str) -> str:
    more = f"{between}and {len(words) - _SHOWN} more" if len(words) > _SHOWN else ""
    return between.join(words[:_SHOWN]) + more
