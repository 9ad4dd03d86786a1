"""Routes: each message names a handler that takes it."""

import inspect
from operator import attrgetter
from typing import get_args

import pytest

from client.train.engine import Engine
from client.train.recovery.waypoints import WaypointDriver
from client.train.swarm.reach import Reach
from client.train.transfer.blobs import Downloads, Shelf
from client.train.transfer.chunks import ChunkServer
from protocol.pipeline.delivery import Deliveries
from protocol.pipeline.pipeline import Pipeline
from protocol.rounds.leader import RoundLeader
from protocol.rounds.member import RoundMember
from protocol.seat.auditing import Auditing
from protocol.seat.charging import Charging
from protocol.seat.evaluating import Evaluating
from protocol.seat.leases import Leases
from protocol.seat.leasing import Leasing
from protocol.seat.seat import Seat
from protocol.seat.showing import Showing
from protocol.wire.messages import MESSAGES, Message

PARTS = {
    "auditing": Auditing,
    "charging": Charging,
    "chunks": ChunkServer,
    "downloads": Downloads,
    "evaluating": Evaluating,
    "leader": RoundLeader,
    "leases": Leases,
    "leasing": Leasing,
    "member": RoundMember,
    "pipeline": Pipeline,
    "pipeline.deliveries": Deliveries,
    "reach": Reach,
    "shelf": Shelf,
    "showing": Showing,
    "waypoints": WaypointDriver,
}
every_type = pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)


@every_type
def test_the_handler_takes_the_message_it_is_named_for(kind: type[Message]) -> None:
    route = kind.route
    if route.taker not in ("node", "seat"):
        assert route.handler == ""
        return
    owner: type = Engine if route.taker == "node" else Seat
    part, _, name = route.handler.rpartition(".")
    handler = attrgetter(name)(PARTS[part] if part else owner)
    parameters = list(inspect.signature(handler).parameters.values())
    taken = parameters[2].annotation  # a type, or its name where that comes later in the module
    if isinstance(taken, str):
        assert kind.__name__ in taken.split(" | ")
    else:
        assert kind in (get_args(taken) or (taken,))


@every_type
def test_what_is_for_a_stage_names_it(kind: type[Message]) -> None:
    route = kind.route
    if route.taker == "seat" and route.to != "first":
        assert "stage" in kind.__struct_fields__
