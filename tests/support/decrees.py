"""Commits, promises and electors, in worlds in which nobody forges a vote."""

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

from client.lab.simulate.chaos.world import is_signed as verify
from client.lab.simulate.chaos.world import signature
from client.lab.simulate.electing import sight
from protocol.decree.elector import Elector
from protocol.ids import PeerId
from protocol.wire.messages import Commit
from protocol.wire.parts import Decree, Promise


def elector(me: PeerId) -> Elector:
    """An elector that signs and verifies so, and sees nobody whom work has proven."""
    sees = sight(proves=lambda _peer: False)
    return Elector(lambda kind, body: signature(me, kind, body), verify, sees)


def show(elector: Elector, **known: Callable[..., Any]) -> None:
    """Let an elector see something else."""
    elector.sees = replace(elector.sees, **known)


def commit_of(
    stage: int,
    step: int,
    attempt: int,
    digest: bytes,
    by: Collection[PeerId],
    *,
    loss_sum: float = 0.0,
    electors: Collection[PeerId] = (),
) -> Commit:
    """Return the commit of an attempt for which the electors ``by`` have voted; they are members
    and, unless others are named, the next electors, too."""
    named = tuple(by)
    decree = Decree(attempt, digest, named, tuple(electors) or named, loss_sum)
    votes = tuple((peer, bytes(64)) for peer in named)
    return Commit(stage, step, attempt, named[0], decree, votes)


def promised_by(*electors: PeerId) -> tuple[Promise, ...]:
    """Return the promises of electors that have voted for nothing: a plan's, from the second
    attempt on."""
    return tuple(Promise(peer, 0, b"", bytes(64)) for peer in sorted(electors))
