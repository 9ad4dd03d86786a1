"""What effects hold: the messages to peers, the tasks of the worker, the blame."""

from collections.abc import Iterable
from typing import Any, TypeVar

from protocol.effects import Penalise, Send
from protocol.ids import PeerId
from protocol.pipeline.effects import Compute, SendPayload, Task
from protocol.wire.messages import Message

Said = TypeVar("Said", bound=Message)


def sent(effects: Iterable[object], kind: type[Said]) -> list[tuple[PeerId, Said]]:
    """The messages of a kind, each with its receiver."""
    sends = [effect for effect in effects if isinstance(effect, Send | SendPayload)]
    return [(send.peer, send.message) for send in sends if isinstance(send.message, kind)]


def tasks(effects: Iterable[object], kind: Any = object) -> list[Task]:
    """The worker's tasks, all or of a kind."""
    found = [effect.task for effect in effects if isinstance(effect, Compute)]
    return [task for task in found if isinstance(task, kind)]


def blamed(effects: Iterable[object]) -> list[tuple[PeerId, str]]:
    return [(effect.peer, effect.reason) for effect in effects if isinstance(effect, Penalise)]
