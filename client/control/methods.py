"""The methods of the control interface: what local programs may ask a node.

``ControlApi`` declares each once: its name, parameters with their bounds, answer and meaning. The
server and ``ControlClient`` derive from it. Pure dispatch: a request goes in, a result comes out,
the node does the rest. No method blocks, none returns more than a bounded answer.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Final, get_type_hints

import msgspec
from msgspec import Meta, Struct

from client.control import rpc
from client.control.snapshot import (
    Amended,
    InvitedMember,
    InviteView,
    PauseView,
    Snapshot,
)
from client.control.updates import MAX_POINTS, Curve, Update
from protocol.amendments.changes import Changes
from protocol.vouching.ticket import TICKET_LIFE_S

MAX_REASON_CHARS: Final = 200

Reason = Annotated[str, Meta(max_length=MAX_REASON_CHARS)]


class Impossible(Exception):
    """The node cannot do what it is asked; the message says why, for people."""


class ControlApi:
    """The methods, as the node implements them and clients call them.

    In a node they run in its own thread and must be quick.
    """

    def status(self) -> Snapshot:
        """Describe the node now."""
        raise NotImplementedError

    def update(self, since: Annotated[int, Meta(ge=0, le=2**62)] = 0) -> Update:
        """Describe the node now, with the remembered events whose ``seq`` is above ``since``,
        oldest first, at most ``EVENTS_AT_ONCE``."""
        raise NotImplementedError

    def history(self, points: Annotated[int, Meta(ge=1, le=MAX_POINTS)] = MAX_POINTS) -> Curve:
        """Return the loss curve of the run, and that on held-out text, each thinned to so many
        points."""
        raise NotImplementedError

    def finish(self, *, discard: bool = False) -> None:
        """Begin an orderly end.

        Args:
            discard: leave also if a state is lost by it.

        Raises:
            Impossible: a state that nobody else has cannot be saved.
        """
        raise NotImplementedError

    def pause(
        self,
        until: Annotated[float, Meta(ge=0, le=1e11)] | None = None,
        reason: Reason = "",
        *,
        discard: bool = False,
    ) -> PauseView:
        """Begin to give up every stage with its memory; stay in the swarm, also after a restart.

        Args:
            until: when it ends, Unix seconds; None: on ``resume``.
            reason: why, for people.
            discard: also if a state is lost by it.

        Raises:
            Impossible: a state that nobody else has cannot be saved.
        """
        raise NotImplementedError

    def resume(self) -> bool:
        """Take part again; False: it was not paused."""
        raise NotImplementedError

    def invite(
        self,
        *,
        once: bool = False,
        life_s: Annotated[float, Meta(ge=1, le=TICKET_LIFE_S)] | None = None,
    ) -> InviteView:
        """Return a fresh invite with members that can be reached now.

        Args:
            once: it is for one member only.
            life_s: seconds after which it lets nobody in; None: the usual life.

        Raises:
            Impossible: the swarm supports neither.
        """
        raise NotImplementedError

    def expel(
        self, member: Annotated[str, Meta(min_length=1, max_length=64)], reason: Reason = ""
    ) -> InvitedMember:
        """Expel a member, named by its peer id or the end of that.

        Raises:
            Impossible: there is no such member, or we may not expel it.
        """
        raise NotImplementedError

    def amend(self, changes: Changes = Changes(), *, sign: bool = False) -> Amended:  # noqa: B008
        """Change the run as its founder, or only say what would change.

        Raises:
            Impossible: we are not its founder, or the run cannot be changed like that.
        """
        raise NotImplementedError


# --- what is derived --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Method:
    """One method as it is served."""

    params: type[Struct]
    answer: Any
    """Type of its answer."""


def _derived(name: str, declared: Callable[..., Any]) -> Method:
    """Return what is served of a method of ``ControlApi``."""
    hints = get_type_hints(declared, include_extras=True)
    answer, fields = hints.pop("return"), list[Any]()
    for parameter in inspect.signature(declared).parameters.values():
        if parameter.name in hints:
            default = () if parameter.default is parameter.empty else (parameter.default,)
            fields.append((parameter.name, hints[parameter.name], *default))
    params = msgspec.defstruct(name, fields, frozen=True, forbid_unknown_fields=True)
    return Method(params, answer)


METHODS: Final = {
    name: _derived(name, declared)
    for name, declared in vars(ControlApi).items()
    if not name.startswith("_")
}


def answer(line: bytes, node: ControlApi) -> bytes:
    """Answer one request line, which is without its newline.

    Never raises: the node's own failure becomes an internal error, so a fault in describing the
    node cannot end it.
    """
    try:
        request = rpc.parse_request(line)
    except rpc.RpcError as error:
        return rpc.encode_error(error)
    try:
        return rpc.encode_result(_performed(request, node), request.id)
    except rpc.RpcError as error:
        code, words = error.code, error.message
    except Impossible as error:
        code, words = rpc.IMPOSSIBLE, str(error)
    except Exception as error:  # the interface must outlive any fault of the node's description
        code, words = rpc.INTERNAL_ERROR, f"{type(error).__name__}: {error}"
    return rpc.encode_error(rpc.RpcError(code, words, request.id))


def _performed(request: rpc.Request, node: ControlApi) -> object:
    method = METHODS.get(request.method)
    if method is None:
        words = f"no method {request.method[:64]!r}; known: {', '.join(sorted(METHODS))}"
        raise rpc.RpcError(rpc.METHOD_NOT_FOUND, words)
    params = msgspec.structs.asdict(rpc.parse_params(request, method.params))
    return getattr(node, request.method)(**params)
