"""Seats of a test, and views in which everybody serves one version."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from client.lab.simulate.electing import UnsplitElector, UnsplitQuorum
from protocol.decree.elector import Elector
from protocol.ids import PeerId
from protocol.pipeline.place import Place
from protocol.rounds.quorum import Quorum
from protocol.seat.seat import Seat
from protocol.view import Replica, SwarmView


def view_of(
    version: int, *stages: Iterable[PeerId], returned: Collection[PeerId] = ()
) -> SwarmView:
    """All these serve their stage at one version; some say that they have all gradients."""
    return SwarmView.of(
        [
            [Replica(peer, version, True, returned=peer in returned) for peer in peers]
            for peers in stages
        ]
    )


def seat_of(
    place: Place,
    step: int,
    *,
    size: int = 64,
    steps: int = 1000,
    serving: bool = True,
    quorum: Quorum | None = None,
    elector: Elector | None = None,
    **parts: Any,
) -> Seat:
    """A seat that has just opened at the beginning of a step, in a world without partitions unless
    a quorum and an elector are given."""
    usual = {
        "era": 0,
        "promise": (0, 0),
        "proves": None,
        "audits": None,
        "evaluation": None,
        "amendments": None,
        "at_once": 1,
        "number_bytes": 0.0,
    }
    return Seat(
        place,
        size=size,
        steps=steps,
        tokens_per_step=1,
        step=step,
        serving=serving,
        quorum=quorum or UnsplitQuorum(place.me, place.stage),
        elector=elector or UnsplitElector(),
        **(usual | parts),
    )
