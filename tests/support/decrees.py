"""Commits and promises, in worlds in which nobody forges a vote."""

from __future__ import annotations

from collections.abc import Collection

from protocol.ids import PeerId
from protocol.wire.messages import Commit
from protocol.wire.parts import Decree, Promise


def commit_of(
    stage: int,
    step: int,
    attempt: int,
    digest: bytes,
    by: Collection[PeerId],
    *,
    loss_sum: float = 0.0,
    electors: Collection[PeerId] = (),
    era: int = 0,
) -> Commit:
    """Return the commit of an attempt for which the electors ``by`` have voted; they are members
    and, unless others are named, the next electors, too."""
    named = tuple(by)
    decree = Decree(attempt, digest, named, tuple(electors) or named, loss_sum)
    votes = tuple((peer, bytes(64)) for peer in named)
    return Commit(stage, step, attempt, named[0], decree, votes, era=era)


def promised_by(*electors: PeerId) -> tuple[Promise, ...]:
    """Return the promises of electors that have voted for nothing: a plan's, from the second
    attempt on."""
    return tuple(Promise(peer, 0, b"", bytes(64)) for peer in sorted(electors))
