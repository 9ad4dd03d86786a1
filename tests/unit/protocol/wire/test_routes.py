"""Routes: each message names a handler that takes it, and nobody else routes."""

import ast
import inspect
from operator import attrgetter
from pathlib import Path

import pytest

from client.train.engine import Engine
from client.train.recovery.waypoints import WaypointDriver
from client.train.swarm.reach import Reach
from client.train.transfer.blobs import Shelf
from client.train.transfer.chunks import ChunkServer
from protocol.pipeline.pipeline import Pipeline
from protocol.rounds.leader import RoundLeader
from protocol.rounds.member import RoundMember
from protocol.seat.auditing import Auditing
from protocol.seat.charging import Charging
from protocol.seat.evaluating import Evaluating
from protocol.seat.leasing import Leasing
from protocol.seat.seat import Seat
from protocol.seat.showing import Showing
from protocol.wire.messages import MESSAGES, Message

ROOT = Path(__file__).parents[4]
PARTS = {
    "auditing": Auditing,
    "charging": Charging,
    "chunks": ChunkServer,
    "evaluating": Evaluating,
    "leader": RoundLeader,
    "leasing": Leasing,
    "member": RoundMember,
    "pipeline": Pipeline,
    "reach": Reach,
    "shelf": Shelf,
    "showing": Showing,
    "waypoints": WaypointDriver,
}
MAY_LOOK = {
    "client/net/carrier.py": "Ping and Moving end on the link",
    "client/node/gather.py": "an observer collects offers while nothing is downloaded",
    "client/train/engine.py": "what decides a round is signed; a commit also teaches our elector",
    "client/train/messaging/bootstrap.py": "before the swarm is known there is nobody to route to",
    "client/train/messaging/slow_news.py": "progress waits for a heartbeat to go with",
    "client/train/recovery/copies.py": "whether an offer is plausible",
    "client/train/stage/failpoints.py": "where a test wants a process to die",
    "client/train/stage/held_stage.py": "an Admit is for the attempt that asked for it",
    "client/train/stage/seat_driver.py": "the size of a payload, before anything else",
    "client/train/stage/stage_acquisition.py": "whether an offer is plausible",
    "client/train/swarm/measuring.py": "how fast links are",
    "client/train/transfer/blobs.py": "the three answers that a download gets",
    "client/train/transfer/leaf_supply.py": "the two answers that a request for leaves gets",
    "client/train/transfer/data_search.py": "an offer or a refusal",
    "protocol/decree/elector.py": "a commit is asked for, or a vote",
    "protocol/evidence/statement.py": "what a message states",
    "protocol/membership/membership.py": "its own three",
    "protocol/seat/early_messages.py": "whether two say the same",
    "protocol/seat/seat.py": "whether we are Ready: who is audited is told before",
    "protocol/seat/routing.py": "only the sender of a Forward waits for an answer",
}
"""Files outside the wire that look at a message's type, and what for: none of it is routing."""
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
    annotation = str(parameters[2].annotation)
    assert kind.__name__ in annotation.split(" | ") or annotation == "Copied"


@every_type
def test_what_is_for_a_stage_names_it(kind: type[Message]) -> None:
    route = kind.route
    if route.taker == "seat" and route.to != "first":
        assert "stage" in kind.__struct_fields__


def test_nobody_else_routes() -> None:
    looking = set[str]()
    for folder in ("client", "protocol"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            name = str(path.relative_to(ROOT))
            if not name.startswith(("protocol/wire/", "client/lab/")) and _looks(path):
                looking.add(name)
    assert looking == set(MAY_LOOK)


def _looks(path: Path) -> bool:
    """Whether a file asks for a message's type, in a ``match`` or with ``isinstance``."""
    tree = ast.parse(path.read_text())
    imported = {
        name.asname or name.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "protocol.wire.messages"
        for name in node.names
    } & {kind.__name__ for kind in MESSAGES}
    asked = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.MatchClass):
            asked |= _names(node.cls)
        elif isinstance(node, ast.Call) and _names(node.func) == {"isinstance"}:
            asked |= _names(node.args[1])
    return bool(asked & imported)


def _names(node: ast.AST) -> set[str]:
    return {found.id for found in ast.walk(node) if isinstance(found, ast.Name)}
