"""The first host's end: the other hosts of the job, and ranks on them.

Only who holds the job's key is listened to. Strangers get a bounded number of connections, for
`link.HANDSHAKE_S` each. Every host is welcomed once, and comes back by itself after it has died.

State: the hosts that are here; the ranks that were asked for and are not connected yet.
"""

from __future__ import annotations

import ipaddress
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import trio

from client.compute.hosts.job import Job
from client.compute.hosts.link import (
    HANDSHAKE_S,
    Link,
    LinkBroken,
    WrongKey,
    connect,
    pipe,
)
from client.compute.hosts.messages import (
    FROM_FOLLOWER,
    OPENING,
    FromLeader,
    HostHere,
    Over,
    RankHere,
    Refused,
    StartRank,
    StoreHere,
    Welcome,
    hear,
    tell,
)
from client.compute.hosts.rank import RemoteRank
from client.errors import ExitCode, UserError

WAIT_S = 600.0
"""Seconds in which all hosts have to come; jobs start on all at once, but images load slowly."""
MOST_STRANGERS = 64
_RANK_S = 30.0
_OVER_S = 2.0


class HostsMissing(UserError):
    """Hosts of the job did not come."""

    def __init__(self, words: str) -> None:
        next_step = "look at their logs; every host runs the same command, with the same key"
        super().__init__(words, next_step, ExitCode.TEMPORARY)


@dataclass(eq=False, slots=True)
class Follower:
    """A host that is here."""

    index: int
    process: bytes
    name: str
    link: Link
    gone: trio.Event = field(default_factory=trio.Event)


class Hosts:
    """The other hosts of a job; see the module's docstring.

    Args:
        job: its hosts, and where they meet.
        device: the owner's words for the devices of each host.
        version: of this program; all hosts run the same.
        explain: gets what happens, in words.
        wait_s: seconds in which all have to come.
    """

    def __init__(
        self,
        job: Job,
        device: str,
        version: str,
        explain: Callable[[str], None],
        wait_s: float = WAIT_S,
    ) -> None:
        self.job = job
        self._device, self._version = device, version
        self._explain, self._wait_s = explain, wait_s
        self._here: dict[int, Follower] = {}
        self._changed = trio.Event()
        self._strangers = 0
        self._turned_away = False
        self._ranks: dict[bytes, trio.MemorySendChannel[Link]] = {}
        self._over: int | None = None
        self.stores: set[int] = set()
        """Ports of loopback by which ranks meet; other hosts may use these and no others."""
        self.asked_to_leave = trio.Event()

    async def run(self, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        """Listen for the other hosts until cancelled.

        Raises:
            UserError: the port cannot be listened on.
        """
        host = self.job.address if _is_loopback(self.job.address) else None
        try:
            listeners = await trio.open_tcp_listeners(self.job.port, host=host)
        except OSError as error:
            words = f"cannot await the other hosts on port {self.job.port}: {error}"
            raise UserError(words, "name a free one by --hosts-address") from error
        task_status.started()
        await trio.serve_listeners(self._accept, listeners)

    async def all_here(self) -> list[Follower]:
        """Wait for all other hosts; return them in order.

        Raises:
            HostsMissing: some did not come in time.
        """
        words = ""
        with trio.move_on_after(self._wait_s):
            while missing := [i for i in range(1, self.job.hosts) if i not in self._here]:
                before, words = words, self._missing_words(missing)
                if words != before:
                    self._explain(f"waiting for {words}")
                await self._changed.wait()
            return [self._here[index] for index in range(1, self.job.hosts)]
        raise HostsMissing(f"{words} did not come within {self._wait_s:.0f} s")

    def _missing_words(self, missing: list[int]) -> str:
        kind = "host" if len(missing) == 1 else "hosts"
        which = ", ".join(map(str, missing))
        return f"{kind} {which} of {self.job.hosts} (numbered from 0)"

    def rank(self, follower: Follower) -> RemoteRank:
        """Return a rank on a host; it is started when it runs."""
        return RemoteRank(follower.name, partial(self._start_rank, follower))

    async def end(self, code: int) -> None:
        """Tell all hosts that the volunteer has ended, with this exit code."""
        self._over = code
        with trio.CancelScope(deadline=trio.current_time() + _OVER_S, shield=True):
            for follower in list(self._here.values()):
                await _try_to_tell(follower.link, Over(code=code))

    # --- connections -------------------------------------------------------------------------

    async def _accept(self, stream: trio.SocketStream) -> None:
        if self._strangers >= MOST_STRANGERS:
            return
        self._strangers += 1
        try:
            link = await connect(stream, self.job.key, dials=False)
            with trio.move_on_after(HANDSHAKE_S) as patience:
                opening = await hear(link, OPENING)
        except WrongKey:
            if not self._turned_away:
                self._explain("somebody without the job's key was turned away; others go unsaid")
            self._turned_away = True
            return
        except LinkBroken:
            return
        finally:
            self._strangers -= 1
        try:
            if not patience.cancelled_caught:
                await self._serve(link, opening)
        except LinkBroken:
            pass
        finally:
            await link.aclose()

    async def _serve(self, link: Link, opening: HostHere | RankHere | StoreHere) -> None:
        match opening:
            case HostHere():
                await self._serve_host(link, opening)
            case RankHere():
                waiting = self._ranks.pop(opening.ticket, None)
                if waiting is not None:
                    waiting.send_nowait(link)
                    await link.closed.wait()
            case StoreHere():
                if opening.port in self.stores:
                    with suppress(OSError):
                        await pipe(link, await trio.open_tcp_stream("127.0.0.1", opening.port))

    async def _serve_host(self, link: Link, host: HostHere) -> None:
        if self._over is not None:
            await tell(link, Over(code=self._over))
            return
        if refusal := self._refusal(host):
            self._explain(f"turned away: {refusal.words}")
            await tell(link, refusal)
            return
        follower = Follower(host.index, host.process, host.name, link)
        if (before := self._here.get(host.index)) is not None:
            await before.link.aclose()
        self._set(host.index, follower)
        self._explain(f"host {host.index} of {self.job.hosts} is here: {host.name}")
        try:
            await tell(link, Welcome())
            while True:
                await hear(link, FROM_FOLLOWER)
                self._explain(f"{host.name} was told to end, so this volunteer leaves")
                self.asked_to_leave.set()
        finally:
            follower.gone.set()
            if self._here.get(host.index) is follower:
                self._set(host.index, None)
                if self._over is None:
                    self._explain(f"host {host.index} is gone: {host.name}")

    def _set(self, index: int, follower: Follower | None) -> None:
        if follower is None:
            del self._here[index]
        else:
            self._here[index] = follower
        self._changed.set()
        self._changed = trio.Event()

    def _refusal(self, host: HostHere) -> Refused | None:
        """Return why a host is none of the volunteer's; None: it is."""
        name, index = host.name, host.index
        if host.version != self._version:
            words = f"{name} runs volunteer {host.version}, the first host {self._version}"
            return Refused(words=words, again=False)
        if index >= self.job.hosts:
            words = f"{name} is host {index}, and the first host expects {self.job.hosts} in all"
            return Refused(words=words, again=False)
        if host.device != self._device:
            words = f"{name} has --devices {host.device}, the first host {self._device}"
            return Refused(words=words, again=False)
        before = self._here.get(index)
        if before is not None and before.process != host.process:
            words = f"{name} is host {index}, and so is {before.name}; one process runs on a host"
            return Refused(words=words, again=True)
        return None

    # --- ranks -------------------------------------------------------------------------------

    async def _start_rank(self, follower: Follower) -> Link:
        """Have a host start a rank; return its connection.

        Raises:
            LinkBroken: the host is gone, or does not connect it.
        """
        ticket = secrets.token_bytes(16)
        send, receive = trio.open_memory_channel[Link](1)
        self._ranks[ticket] = send
        came: list[Link] = []
        try:
            await tell(follower.link, StartRank(ticket=ticket))
            with trio.move_on_after(_RANK_S):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_cancel_when_gone, follower, nursery.cancel_scope)
                    came.append(await receive.receive())
                    nursery.cancel_scope.cancel()
        finally:
            self._ranks.pop(ticket, None)
        if came:
            return came[0]
        gone = follower.gone.is_set()
        raise LinkBroken("it is gone" if gone else f"no rank came within {_RANK_S:.0f} s")


async def _cancel_when_gone(follower: Follower, scope: trio.CancelScope) -> None:
    await follower.gone.wait()
    scope.cancel()


async def _try_to_tell(link: Link, message: FromLeader) -> None:
    with suppress(LinkBroken):
        await tell(link, message)


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
