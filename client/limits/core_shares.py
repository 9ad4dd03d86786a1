"""Shares a machine's cores among its volunteers. Pure, so all of them compute the same.

Cores are shared evenly among users, then among the volunteers of each user, in whole cores. A
volunteer whose owner chose a number of threads has these, within the user's part; the others share
the rest. However many volunteers a user runs, or claims to run, they stay within that part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True, slots=True)
class Claim:
    """Another volunteer that computes on our cores."""

    user: int
    threads: int = 0
    """Threads chosen by its owner; 0: its share."""


def fair_threads(cores: int, user: int, others: Sequence[Claim]) -> int:
    """Return the threads of a volunteer whose owner chose no number; at least 1.

    Args:
        cores: cores that it may use.
        user: id of the user that runs it.
        others: the other volunteers that compute on these cores.
    """
    claims: dict[int, list[int]] = {user: [0]}
    for claim in others:
        claims.setdefault(claim.user, []).append(claim.threads)
    chosen = sum(claims[user])
    left = _part_of_a_user(cores, list(claims.values())) - chosen
    return max(1, int(left / claims[user].count(0)))


def _part_of_a_user(cores: int, claims: Sequence[Sequence[int]]) -> Fraction:
    """Return the cores of each user without a chosen number, after users that want less."""
    modest = sorted(sum(threads) for threads in claims if 0 not in threads)
    left, waiting = Fraction(cores), len(claims)
    for wanted in modest:
        left -= min(Fraction(wanted), left / waiting)
        waiting -= 1
    return left / waiting
