"""Limits this volunteer to its share of the machine while its other volunteers come and go.

A thin driver: ``client.limits`` finds the other volunteers and computes the share. All workers of
one volunteer have the same number of threads, because they take turns. Memory stays with the
volunteer that has it: see ``memory_shares``. State: the present number, and what the others were
told.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

import psutil
import trio

from client.limits.core_shares import Claim, fair_threads
from client.limits.cores import Cores, find_cores, plural_cores
from client.limits.local_volunteers import Board, Notice, Seen
from client.limits.memory_shares import memory_left
from protocol.effects import Explain

LOOK_S: Final = 1.0


class NoticeBoard(Protocol):
    """How volunteers of one machine see each other."""

    def post(self, notice: Notice) -> None:
        """Publish our notice, or replace it; raises ``OSError``."""

    def withdraw(self) -> None:
        """Remove our notice."""

    def others(self) -> list[Seen]:
        """Return the other volunteers that are running."""


@dataclass(frozen=True, slots=True)
class Share:
    """The cores and threads that this volunteer computes with."""

    threads: int
    cores: int
    """Cores of the machine that this process may use."""
    volunteers: int = 1
    """Volunteers that compute on them, this one included."""

    @property
    def words(self) -> str:
        """The share in words."""
        plural = "thread" if self.threads == 1 else "threads"
        found = f"{self.threads} {plural} on {plural_cores(self.cores)}"
        shared = f", shared by {self.volunteers} volunteers" if self.volunteers > 1 else ""
        return found + shared


class CoreSharing:
    """See the module's docstring.

    Args:
        chosen: threads as the owner chose; 0: our share.
        explain: shows a message to the user.
    """

    def __init__(
        self,
        chosen: int,
        explain: Callable[[Explain], None],
        board: NoticeBoard | None = None,
        look_at_cores: Callable[[], Cores] = find_cores,
        user: int | None = None,
        free_bytes: Callable[[], int] = lambda: int(psutil.virtual_memory().available),
    ) -> None:
        self._chosen, self._explain = chosen, explain
        self._board = board or Board()
        self._find_cores = look_at_cores
        self._user = os.geteuid() if user is None else user
        self._posted: Notice | None = None
        self._computing, self._memory_bytes, self._free_bytes = False, 0, free_bytes
        self._gone = False
        """Whether our notice was withdrawn: only `run` posts it again."""
        self.share = self._share_of(look_at_cores(), [])

    @property
    def threads(self) -> int:
        """Present threads of a worker."""
        return self.share.threads

    @property
    def most_threads(self) -> int:
        """Threads that a worker may be given later."""
        return self._chosen or self.share.cores

    async def run(self, computing: Callable[[], bool], tell: Callable[[int], None]) -> None:
        """Look every second until cancelled.

        Args:
            computing: whether we hold a stage.
            tell: is called with the new number of threads whenever it changes.
        """
        self._gone = False
        try:
            while True:
                before = self.threads
                self.look(computing())
                if self.threads != before:
                    self._explain(Explain("swarm", f"computes with {self.share.words}"))
                    tell(self.threads)
                await trio.sleep(LOOK_S)
        finally:
            self._board.withdraw()
            self._posted, self._gone = None, True

    def look(self, computing: bool) -> None:
        """Publish our state and compute our present share."""
        cores, self._computing = self._find_cores(), computing
        self._post(cores)
        self.share = self._share_of(cores, self._board.others())

    def hold_memory(self, size_bytes: int) -> None:
        """Tell the others at once how much of the machine's memory our stages need."""
        self._memory_bytes = size_bytes
        self._post(self._find_cores())

    def memory_left(self, total_bytes: int) -> int:
        """Return how much of the memory for volunteers the others leave to us now."""
        others = [(seen.user, seen.notice.memory_bytes) for seen in self._board.others()]
        free_bytes = self._free_bytes() + self._memory_bytes
        return memory_left(total_bytes, free_bytes, self._user, others)

    def _post(self, cores: Cores) -> None:
        notice = Notice(
            pid=os.getpid(),
            cpus=f"{_mask(cores):x}",
            group=cores.quota.group if cores.quota else "",
            threads=self._chosen,
            computing=self._computing,
            memory_bytes=self._memory_bytes,
        )
        if notice != self._posted and not self._gone:
            with suppress(OSError):  # the others do not see us; we still see them
                self._board.post(notice)
                self._posted = notice

    def _share_of(self, cores: Cores, others: list[Seen]) -> Share:
        computing = [seen for seen in others if seen.notice.computing]
        beside = [seen for seen in computing if seen.notice.mask & _mask(cores)]
        volunteers = 1 + len(beside)
        if self._chosen:
            return Share(self._chosen, cores.usable, volunteers)
        threads = fair_threads(cores.physical, self._user, _claims(beside))
        if cores.quota is not None:
            fellows = [seen for seen in computing if seen.notice.group == cores.quota.group]
            threads = min(threads, fair_threads(cores.usable, self._user, _claims(fellows)))
        return Share(threads, cores.usable, volunteers)


def _claims(seen: list[Seen]) -> list[Claim]:
    return [Claim(each.user, each.notice.threads) for each in seen]


def _mask(cores: Cores) -> int:
    return sum(1 << cpu for cpu in cores.cpus if cpu < 2048)
