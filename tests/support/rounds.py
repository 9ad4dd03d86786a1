"""Leaders and members of a round that know nothing but what a test tells them."""

from dataclasses import dataclass
from typing import Any

from client.lab.simulate.electing import UnsplitElector, UnsplitQuorum
from client.lab.simulate.unamended import Unamended
from protocol.answer import YES
from protocol.pipeline.place import Place
from protocol.rounds.commitments import Commitments
from protocol.rounds.effects import RoundEffect
from protocol.rounds.leader import RoundLeader
from protocol.rounds.member import RoundMember
from protocol.rounds.obstruction import Obstruction


@dataclass
class OwnReplica:
    """What a leader knows of its own replica's part in the round."""

    knows_commit: bool = False
    received: int = 0
    ready: bytes = b""
    state: bytes = b""
    hashing: bool = False


@dataclass
class Summed:
    """The worker's sum, as set by a test."""

    ids: set[int]
    accumulating: bool = False

    def done(self) -> set[int]:
        return set(self.ids)

    def drop(self, microbatch: int) -> list[RoundEffect]:
        self.ids.discard(microbatch)
        return []

    def loss_sum(self, ids: frozenset[int]) -> float:
        return float(sum(ids))

    def close(self) -> None:
        pass


def member_of(place: Place, size: int, step: int, *, summed: Summed, **parts: Any) -> RoundMember:
    """A member at the beginning of a step, whose worker has summed these gradients."""
    usual = {
        "loaded": True,
        "promise": (0, 0),
        "commitments": Commitments(place.me, active=False),
        "contributed": lambda _plan, _counted: [],
        "closing": lambda _plan, _digest, _came: [],
        "rate": lambda _amended, _step: None,
        "sign": lambda ready: ready,
        "roll": frozenset,
    }
    return RoundMember(place, size, step, accumulator=summed, **(usual | parts))


def parts_of_leader(place: Place, **parts: Any) -> dict[str, Any]:
    """What a leader is made of; its stage has all gradients, and whoever asks is let in."""
    usual = {
        "member": OwnReplica(),
        "quorum": UnsplitQuorum(place.me, place.stage),
        "elector": UnsplitElector(),
        "amendments": Unamended(1000),
        "lets_in": lambda _peer, _now: True,
        "returned": lambda: YES,
        "left_behind": lambda: False,
        "obstruction": Obstruction(),
    }
    return usual | parts


def leader_of(place: Place, size: int, step: int, **parts: Any) -> RoundLeader:
    return RoundLeader(place, size, step, **parts_of_leader(place, **parts))
