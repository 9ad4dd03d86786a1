"""Relatives: members that may be one person's, or that one event may take at once.

Two members are related if they have a *mark* in common: the prefix of an address, or the branch of
the tree of invitations. Each *earlier* relative that holds a stage makes it less attractive
(``preferences.gain``). Relatives that arrive together have no stage yet. They take turns: each in
the order of arrival goes where the fewest of them are, and every other stage counts as if one more
relative held it.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from protocol.hosts import is_global, kind_of, prefix_of
from protocol.ids import PeerId, Stage, rank
from protocol.matching.member import Member

BRANCH: Final = "branch/"
MAX_COUNTED: Final = 64
"""Relatives beyond these change no preference, and would cost time."""


def mark_of_host(host: str) -> str | None:
    """Return the mark of an address: its prefix. None for a name, and for an address that says
    nothing because many networks use it (private, loopback)."""
    return f"{kind_of(host)}/{prefix_of(host)}" if is_global(host) else None


def mark_of_path(path: Iterable[PeerId]) -> str | None:
    """Return the mark of a chain of vouches, from the member that the founder let in down to the
    member itself: that first one. The founder has none."""
    first = next(iter(path), None)
    return None if first is None else BRANCH + first


def held_by_relatives(
    member: Member, relatives: Iterable[Member], stages: int
) -> Mapping[Stage, int]:
    """Return how many earlier relatives of a member hold each stage, or will."""
    others = [relative for relative in relatives if relative.peer != member.peer]
    earlier = sorted((m for m in others if _order(m) < _order(member)), key=_order)[:MAX_COUNTED]
    counts = [0] * stages
    for relative in earlier:
        if (home := relative.home_stage) is not None and home < stages:
            counts[home] += 1
    if member.home_stage is None and any(relative.home_stage is None for relative in others):
        first = int.from_bytes(rank("relatives", *sorted(member.marks))[:4], "big") % stages
        for _ in [relative for relative in earlier if relative.home_stage is None]:
            counts[_turn(counts, first)] += 1
        turn = _turn(counts, first)
        counts = [count + (stage != turn) for stage, count in enumerate(counts)]
    return {Stage(stage): count for stage, count in enumerate(counts) if count}


def _turn(counts: Sequence[int], first: int) -> int:
    """Return the stage with the fewest, the next one after ``first`` of several."""
    return min(range(len(counts)), key=lambda s: (counts[s], (s - first) % len(counts)))


def _order(member: Member) -> tuple[float, PeerId]:
    return member.joined_at, member.peer
