"""The methods of the control interface: the requests of local programs to a node.

Pure dispatch: a request goes in, a result comes out, the ``Provider`` does the rest. No method
blocks, none returns more than a bounded answer. Those that change the node are for its owner.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Protocol

from msgspec import Meta, Struct

from client.control import rpc
from client.control.matches import MatchesSnapshot
from client.control.snapshot import (
    Amended,
    DrainCostView,
    EventView,
    InvitedMember,
    InviteView,
    Membership,
    PauseView,
    Snapshot,
)
from client.control.updates import (
    MAX_POINTS,
    Curve,
    HeldOutPoint,
    StepPoint,
    Subscribe,
    Subscribed,
)
from protocol.amendments.changes import Changes
from protocol.vouching.ticket import TICKET_LIFE_S

MAX_EVENTS_PER_ANSWER = 500
MAX_REASON_CHARS = 200


class Provider(Protocol):
    """The node's interface to the control server. The calls run in the node's own thread and must
    be quick."""

    def snapshot(self) -> Snapshot:
        """Describe the node now."""

    def matches(self, everything: bool) -> MatchesSnapshot:
        """Describe the matching now; ``everything``: explanations for developers, too."""

    def events(self, since: int) -> list[EventView]:
        """Return the remembered events whose ``seq`` is above ``since``, oldest first."""

    def stop(self) -> None:
        """Begin an orderly stop and return at once.

        Raises:
            Impossible: a state that nobody else has cannot be saved.
        """

    def finish(self, *, discard: bool = False) -> list[DrainCostView]:
        """As ``stop``; return the consequences for the stages that the node serves.

        Args:
            discard: leave also if a state is lost by it.
        """

    def history(self, points: int) -> list[StepPoint]:
        """Return the loss curve of the run in at most ``points`` points."""

    def held_out(self, points: int) -> list[HeldOutPoint]:
        """Return the losses on held-out text, oldest first, thinned to so many points."""

    def pause(self, until: float | None, reason: str, *, discard: bool = False) -> PauseView:
        """Begin to give up every stage with its memory; stay in the swarm, also after a restart.

        Args:
            until: when it ends, Unix seconds; None: on ``resume``.
            reason: why, for people.
            discard: also if a state is lost by it.

        Raises:
            Impossible: a state that nobody else has cannot be saved.
        """

    def resume(self) -> bool:
        """Take part again; False: it was not paused."""

    def invite(self, *, once: bool, life_s: float | None) -> InviteView:
        """Return a fresh invite with members that can be reached now.

        Args:
            once: it is for one member only.
            life_s: seconds after which it lets nobody in; None: the usual life.

        Raises:
            Impossible: the swarm supports neither.
        """

    def members(self) -> Membership:
        """Return who belongs to the swarm, and through whom."""

    def amend(self, changes: Changes, *, sign: bool) -> Amended:
        """Change the run as its founder, or only say what would change.

        Raises:
            Impossible: we are not its founder, or the run cannot be changed like that.
        """

    def expel(self, member: str, reason: str) -> InvitedMember:
        """Expel a member, named by its peer id or the end of that.

        Raises:
            Impossible: there is no such member, or we may not expel it.
        """


class Impossible(Exception):
    """A provider cannot do what it is asked; the message says why, for people."""


@dataclass(slots=True)
class Caller:
    """One connection: its rights and its subscription."""

    may_write: bool = True
    subscription: Subscribe | None = None
    seq: int = 0
    """Number of the newest update that was due."""


class Greeting(Struct, frozen=True):
    """Answer to ``hello``."""

    version: int
    client: str
    peer: str
    swarm: str
    swarm_name: str
    pid: int


class EventBatch(Struct, frozen=True):
    """Answer to ``events``; ask again with ``since=last``."""

    events: list[EventView]
    last: int


class Stopping(Struct, frozen=True):
    """Answer to ``stop``."""

    stopping: bool = True


class Finishing(Struct, frozen=True):
    """Answer to ``finish``: the node hands over, saves, and leaves."""

    leaving: list[DrainCostView]


class Pausing(Struct, frozen=True):
    """Answer to ``pause``."""

    paused: PauseView


class Resuming(Struct, frozen=True):
    """Answer to ``resume``."""

    resumed: bool
    """False: it was not paused."""


class _HelloParams(Struct, frozen=True, forbid_unknown_fields=True):
    version: int


class _EventsParams(Struct, frozen=True, forbid_unknown_fields=True):
    since: Annotated[int, Meta(ge=0, le=2**62)] = 0


class _MatchesParams(Struct, frozen=True, forbid_unknown_fields=True):
    everything: bool = False


class _HistoryParams(Struct, frozen=True, forbid_unknown_fields=True):
    points: Annotated[int, Meta(ge=1, le=MAX_POINTS)] = MAX_POINTS


class _PauseParams(Struct, frozen=True, forbid_unknown_fields=True):
    until: Annotated[float, Meta(ge=0, le=1e11)] | None = None
    reason: Annotated[str, Meta(max_length=MAX_REASON_CHARS)] = ""
    discard: bool = False


class _FinishParams(Struct, frozen=True, forbid_unknown_fields=True):
    discard: bool = False


class _InviteParams(Struct, frozen=True, forbid_unknown_fields=True):
    once: bool = False
    life_s: Annotated[float, Meta(ge=1, le=TICKET_LIFE_S)] | None = None


class _ExpelParams(Struct, frozen=True, forbid_unknown_fields=True):
    member: Annotated[str, Meta(min_length=1, max_length=64)]
    reason: Annotated[str, Meta(max_length=MAX_REASON_CHARS)] = ""


class _AmendParams(Struct, frozen=True, forbid_unknown_fields=True):
    changes: Changes = Changes()
    sign: bool = False


class _NoParams(Struct, frozen=True, forbid_unknown_fields=True):
    pass


def _hello(request: rpc.Request, provider: Provider, caller: Caller) -> Greeting:
    asked = rpc.parse_params(request, _HelloParams).version
    if asked != rpc.API_VERSION:
        words = f"this node speaks version {rpc.API_VERSION} of the control interface, not {asked}"
        raise rpc.RpcError(rpc.WRONG_VERSION, words, request.answer_id)
    now = provider.snapshot()
    return Greeting(rpc.API_VERSION, now.version, now.peer, now.swarm, now.swarm_name, os.getpid())


def _status(request: rpc.Request, provider: Provider, caller: Caller) -> Snapshot:
    rpc.parse_params(request, _NoParams)
    return provider.snapshot()


def _matches(request: rpc.Request, provider: Provider, caller: Caller) -> MatchesSnapshot:
    return provider.matches(rpc.parse_params(request, _MatchesParams).everything)


def _events(request: rpc.Request, provider: Provider, caller: Caller) -> EventBatch:
    since = rpc.parse_params(request, _EventsParams).since
    batch = provider.events(since)[:MAX_EVENTS_PER_ANSWER]
    return EventBatch(batch, batch[-1].seq if batch else since)


def _stop(request: rpc.Request, provider: Provider, caller: Caller) -> Stopping:
    rpc.parse_params(request, _NoParams)
    provider.stop()
    return Stopping()


def _finish(request: rpc.Request, provider: Provider, caller: Caller) -> Finishing:
    asked = rpc.parse_params(request, _FinishParams)
    return Finishing(provider.finish(discard=asked.discard))


def _history(request: rpc.Request, provider: Provider, caller: Caller) -> Curve:
    points = rpc.parse_params(request, _HistoryParams).points
    return Curve(provider.history(points), provider.held_out(points))


def _pause(request: rpc.Request, provider: Provider, caller: Caller) -> Pausing:
    asked = rpc.parse_params(request, _PauseParams)
    return Pausing(provider.pause(asked.until, asked.reason, discard=asked.discard))


def _resume(request: rpc.Request, provider: Provider, caller: Caller) -> Resuming:
    rpc.parse_params(request, _NoParams)
    return Resuming(provider.resume())


def _invite(request: rpc.Request, provider: Provider, caller: Caller) -> InviteView:
    asked = rpc.parse_params(request, _InviteParams)
    return provider.invite(once=asked.once, life_s=asked.life_s)


def _members(request: rpc.Request, provider: Provider, caller: Caller) -> Membership:
    rpc.parse_params(request, _NoParams)
    return provider.members()


def _expel(request: rpc.Request, provider: Provider, caller: Caller) -> InvitedMember:
    asked = rpc.parse_params(request, _ExpelParams)
    return provider.expel(asked.member, asked.reason)


def _amend(request: rpc.Request, provider: Provider, caller: Caller) -> Amended:
    asked = rpc.parse_params(request, _AmendParams)
    return provider.amend(asked.changes, sign=asked.sign)


def _subscribe(request: rpc.Request, provider: Provider, caller: Caller) -> Subscribed:
    caller.subscription = rpc.parse_params(request, Subscribe)
    return Subscribed(seq=caller.seq)


METHODS: dict[str, Callable[[rpc.Request, Provider, Caller], Struct]] = {
    "hello": _hello,
    "status": _status,
    "matches": _matches,
    "events": _events,
    "history": _history,
    "subscribe": _subscribe,
    "stop": _stop,
    "finish": _finish,
    "pause": _pause,
    "resume": _resume,
    "invite": _invite,
    "members": _members,
    "expel": _expel,
    "amend": _amend,
}
FOR_OWNER = frozenset({"stop", "finish", "pause", "resume", "invite", "expel", "amend"})
"""Methods that change the node or make an invite."""


def answer(line: bytes, provider: Provider, caller: Caller | None = None) -> bytes:
    """Answer one request line; empty for a notification.

    Never raises: a provider's own failure becomes an internal error, so a fault in describing
    the node cannot end it.

    Args:
        line: the request, without its newline.
        provider: the node.
        caller: the connection, with its rights and its subscription.
    """
    try:
        request = rpc.parse_request(line)
    except rpc.RpcError as error:
        return rpc.encode_error(error)
    reply = _call(request, provider, caller or Caller())
    return b"" if request.is_notification else reply


def _call(request: rpc.Request, provider: Provider, caller: Caller) -> bytes:
    method = METHODS.get(request.method)
    try:
        if method is None:
            words = f"no method {request.method[:64]!r}; known: {', '.join(sorted(METHODS))}"
            raise rpc.RpcError(rpc.METHOD_NOT_FOUND, words, request.answer_id)
        if request.method in FOR_OWNER and not caller.may_write:
            words = f"only the volunteer's owner and root may ask it to {request.method}"
            raise rpc.RpcError(rpc.FORBIDDEN, words, request.answer_id)
        return rpc.encode_result(method(request, provider, caller), request.answer_id)
    except rpc.RpcError as error:
        return rpc.encode_error(error)
    except Impossible as error:
        return rpc.encode_error(rpc.RpcError(rpc.IMPOSSIBLE, str(error), request.answer_id))
    except Exception as error:  # the interface must outlive any fault of the node's description
        words = f"{type(error).__name__}: {error}"
        return rpc.encode_error(rpc.RpcError(rpc.INTERNAL_ERROR, words, request.answer_id))
