"""The leaderboard in the form of the status: names, tokens and shares beside what was counted."""

from collections.abc import Callable, Mapping
from typing import Final

from client.control.snapshot import ContributorView
from protocol.ids import PeerId
from protocol.manifest import Manifest

MAX_SHOWN: Final = 100


def contributors_view(
    counts: Mapping[PeerId, int], name: Callable[[PeerId], str], manifest: Manifest
) -> list[ContributorView]:
    """Return the lines of the board, the most work first, at most ``MAX_SHOWN``.

    Args:
        counts: microbatches by member.
        name: returns a member's name; empty: it has none.
        manifest: of the run.
    """
    total = sum(counts.values())
    ranked = sorted(counts.items(), key=lambda one: (-one[1], one[0]))
    return [
        ContributorView(
            peer=peer,
            name=name(peer),
            microbatches=count,
            tokens=count * manifest.tokens_per_microbatch,
            share=count / total if total else 0.0,
        )
        for peer, count in ranked[:MAX_SHOWN]
    ]
