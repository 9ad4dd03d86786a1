"""Another host's end: starts ranks for the first host until that one has ended. No torch.

It connects to the first host again whenever the connection is lost, until it is told that the
volunteer has ended; after `WAIT_S` without the first host it gives up. A host that is told to end
tells the first one, and goes on until that one has handed over, saved and left.

State: the connection to the first host, and the processes of its ranks.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import trio

from client.compute.hosts.job import Job
from client.compute.hosts.leading import WAIT_S
from client.compute.hosts.link import HANDSHAKE_S, Link, LinkBroken, WrongKey, connect, pipe
from client.compute.hosts.messages import (
    FROM_LEADER,
    HostHere,
    Leaving,
    Opening,
    Over,
    RankHere,
    Refused,
    StartRank,
    StoreHere,
    hear,
    tell,
)
from client.compute.hosts.rank import ServedRank
from client.errors import ExitCode, UserError

_AGAIN_S = 1.0
_WRONG_KEYS = 3  # in succession
"""A connection may also be closed because the first host ends just then."""
_REFUSALS_S = 60.0
"""The first host notices within this time that a process with our index has gone."""


class Following:
    """See the module's docstring.

    Args:
        job: the hosts, and where they meet.
        device: the owner's words for the devices of each host.
        version: of this program.
        explain: gets what happens, in words.
        wait_s: seconds without the first host after which this one gives up.
    """

    def __init__(
        self,
        job: Job,
        device: str,
        version: str,
        explain: Callable[[str], None],
        wait_s: float = WAIT_S,
    ) -> None:
        self._job, self._explain, self._wait_s = job, explain, wait_s
        self._here = HostHere(
            index=job.index,
            process=secrets.token_bytes(16),
            name=socket.gethostname()[:256],
            device=device,
            version=version,
        )
        self._link: Link | None = None
        self._said = ""

    async def run(self, leave: trio.Event) -> int:
        """Serve until the volunteer has ended; return its exit code.

        Args:
            leave: set it to have the volunteer leave, and this host end with it.

        Raises:
            UserError: the first host does not come, or wants nothing to do with this one.
        """
        code: int = ExitCode.TEMPORARY
        failure: UserError | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._leave, leave, nursery.cancel_scope)
            try:
                code = await self._until_over(leave)
            except UserError as error:
                failure = error  # raised below, where no nursery wraps it into a group
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure
        return code

    async def _leave(self, leave: trio.Event, life: trio.CancelScope) -> None:
        """Have the volunteer leave; end at once if it is not there."""
        await leave.wait()
        if self._link is None:
            life.cancel()
            return
        try:
            await tell(self._link, Leaving())
        except LinkBroken:
            life.cancel()

    async def _until_over(self, leave: trio.Event) -> int:
        last_seen = trio.current_time()
        wrong_keys = 0
        refused_since: float | None = None
        while True:
            try:
                over = await self._serve()
                if over is not None:
                    return over
                last_seen, refused_since, wrong_keys = trio.current_time(), None, 0
            except WrongKey as error:
                wrong_keys += 1
                if wrong_keys == _WRONG_KEYS:
                    words = f"the first host, {self._place}, holds another key than this one"
                    step = "give both the same --hosts-key-file"
                    raise UserError(words, step, ExitCode.REFUSED) from error
            except _Refused as refusal:
                now = trio.current_time()
                refused_since = now if refused_since is None else refused_since
                if not refusal.again or now - refused_since > _REFUSALS_S:
                    step = "every host of the job runs one process, with the same program and flags"
                    raise UserError(str(refusal), step, ExitCode.CONFIG) from refusal
            except (OSError, LinkBroken) as error:
                if trio.current_time() - last_seen > self._wait_s:
                    words = f"the first host, {self._place}, was not there for {self._wait_s:.0f} s"
                    raise UserError(
                        words, f"look at its log ({error})", ExitCode.TEMPORARY
                    ) from None
                self._say(f"waiting for the first host, {self._place}")
            if leave.is_set():
                return ExitCode.TEMPORARY
            await trio.sleep(_AGAIN_S)

    @property
    def _place(self) -> str:
        return f"{self._job.address}:{self._job.port}"

    def _say(self, words: str) -> None:
        if words != self._said:
            self._said = words
            self._explain(words)

    async def _dial(self, opening: Opening) -> Link:
        """Return a new connection to the first host.

        Raises:
            OSError: it cannot be reached.
            LinkBroken: it ends the connection.
            WrongKey: it holds another key.
        """
        try:
            with trio.fail_after(HANDSHAKE_S):
                stream = await trio.open_tcp_stream(self._job.address, self._job.port)
        except trio.TooSlowError as error:
            raise LinkBroken("it does not answer") from error
        link = await connect(stream, self._job.key, dials=True)
        await tell(link, opening)
        return link

    async def _serve(self) -> int | None:
        """Serve over one connection; return the volunteer's exit code, or None: it was lost."""
        self._link = link = await self._dial(self._here)
        try:
            with trio.fail_after(HANDSHAKE_S):
                answer = await hear(link, FROM_LEADER)
            match answer:
                case Over():
                    return answer.code
                case Refused():
                    raise _Refused(answer)
            self._say(f"host {self._job.index} of {self._job.hosts}: computes for {self._place}")
            async with trio.open_nursery() as nursery:
                over = await self._obey(link, nursery)
                nursery.cancel_scope.cancel()
            return over
        except trio.TooSlowError as error:
            raise LinkBroken("it does not answer") from error
        finally:
            self._link = None
            await link.aclose()

    async def _obey(self, link: Link, nursery: trio.Nursery) -> int | None:
        try:
            while True:
                match await hear(link, FROM_LEADER):
                    case StartRank(ticket=ticket):
                        nursery.start_soon(self._serve_rank, ticket)
                    case Over(code=code):
                        return code
        except LinkBroken:
            return None

    async def _serve_rank(self, ticket: bytes) -> None:
        with suppress(OSError, LinkBroken):
            link = await self._dial(RankHere(ticket=ticket))
            try:
                await ServedRank(link, self._open_store).run()
            finally:
                await link.aclose()

    async def _open_store(self, port: int, nursery: trio.Nursery) -> int:
        """Make a store of the first host reachable; return the port of loopback here."""

        async def serve(stream: trio.SocketStream) -> None:
            with suppress(OSError, LinkBroken):
                await pipe(await self._dial(StoreHere(port=port)), stream)

        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(partial(trio.serve_listeners, serve, listeners))
        return int(listeners[0].socket.getsockname()[1])


class _Refused(Exception):
    def __init__(self, refused: Refused) -> None:
        super().__init__(refused.words)
        self.again = refused.again
