"""The leaderboard in the form of the status: names, tokens and shares beside what was counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from client.control.snapshot import ContributorView
from protocol.contributions.board import Contributor
from protocol.ids import PeerId
from protocol.manifest import Manifest

MAX_SHOWN: Final = 100


def contributors_view(
    found: Sequence[Contributor], name: Callable[[PeerId], str], manifest: Manifest, step: int
) -> list[ContributorView]:
    """Return the lines of the board, at most ``MAX_SHOWN``.

    Args:
        found: the lines, the most work first.
        name: returns a member's name; empty: it has none.
        manifest: of the run.
        step: steps that are done.
    """
    total = step * manifest.microbatches_per_step * manifest.stage_count
    return [
        ContributorView(
            peer=one.peer,
            name=name(one.peer),
            microbatches=one.microbatches,
            tokens=one.microbatches * manifest.tokens_per_microbatch,
            share=min(1.0, one.microbatches / total) if total else 0.0,
            vouchers=one.vouchers,
            unvouched=one.unvouched,
        )
        for one in found[:MAX_SHOWN]
    ]
