"""A worker that is a group of processes, its ranks: one volunteer, all of its devices. No torch.

Each rank is a worker process with the whole stage on a device of its own. Microbatches are dealt
out: a microbatch belongs to one rank from its first request on, because its graph and its gradient
are there.

The first rank leads. It makes the versions, takes part in rounds and saves; before a contribution
the gradient sums are moved to it, and after an update it gives the parameters to the others
(`ranks`). So the node sees one worker, with one ledger.

Requests begin in the order in which they are made. Passes of different microbatches overlap and may
be answered in another order; everything that moves a sum or makes a version waits until all before
it are answered, and what comes after waits for it.

A rank that dies, or a collective operation that fails or hangs, ends the whole group: then this
worker has died, and all that it held is recovered as from the death of one process.

State: the ranks; which microbatch belongs to which, and which are counted there.
"""

from __future__ import annotations

import math
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeGuard

import trio
from msgspec.structs import replace

from client.compute.process import Call, Rank, RequestFailed, Worker, WorkerDied, WorkerProcess
from client.compute.requests import (
    Answer,
    Failed,
    GatherSum,
    JoinGroup,
    Load,
    LoadStart,
    MatmulRate,
    OpenStage,
    Ping,
    Probe,
    Probed,
    Request,
    Save,
    ShareVersion,
)
from client.devices import torch_name
from protocol.pipeline.effects import (
    ApplyTask,
    BackwardTask,
    ContributeTask,
    ForwardTask,
    LossTask,
    PassTask,
    Task,
)

COLLECTIVE_S = 120
"""Seconds after which a rank that does not take part in a collective operation is given up."""
_MARGIN_S = 30.0
"""A library that does not keep its own timeout is given up so much later."""
_BLAME_S = 1.0

_PASSES = ForwardTask | LossTask | BackwardTask | PassTask
_ALL = OpenStage | Load | LoadStart | Probe | Ping
_ROUND = ContributeTask | ApplyTask
_OWN = _ALL | _ROUND
"""Requests that the group handles by itself; what is left goes to the first rank."""

_Asked = Request[Any] | Task
_Outcome = tuple[Answer, list[bytes]]


@dataclass(slots=True)
class _Ledger:
    """Where microbatches are, and are counted, by rank."""

    ranks: int
    homes: dict[int, int] = field(default_factory=dict)
    steps: dict[int, int] = field(default_factory=dict)
    """The step of each microbatch that has a home."""
    counted: dict[int, int] = field(default_factory=dict)

    def in_sums(self, step: int) -> list[list[int]]:
        """The counted microbatches of a step, by rank."""
        return [
            sorted(m for m, at in self.counted.items() if at == rank and self.steps[m] == step)
            for rank in range(self.ranks)
        ]

    def gathered(self, step: int) -> None:
        """All that is counted of a step is counted by the first rank now."""
        for microbatch in self.counted:
            if self.steps[microbatch] == step:
                self.counted[microbatch] = self.homes[microbatch] = 0

    def forget_before(self, step: float) -> None:
        """Steps before this one are over."""
        for microbatch in [m for m, of in self.steps.items() if of < step]:
            del self.steps[microbatch], self.homes[microbatch]
            self.counted.pop(microbatch, None)


class WorkerGroup(Worker):
    """See the module's docstring; made by `new_group`.

    Args:
        processes: the ranks, the one that leads first; the group runs them.
        devices: of each.
        folder: in which they find each other; removed with the group.
        timeout_s: of collective operations.
    """

    def __init__(
        self,
        processes: Sequence[Worker],
        devices: Sequence[str],
        folder: Path,
        timeout_s: int,
    ) -> None:
        super().__init__()
        self._processes, self._devices = tuple(processes), tuple(devices)
        self._folder, self._timeout_s = folder, timeout_s
        self._joined = False
        self._ledger = _Ledger(len(devices))
        self._busy = Counter[int]()
        """What each rank has to compute."""
        self._begun = 0
        """Requests that a rank computes for: a rank that computes cannot take part in anything."""
        self._done = Counter[int]()
        self._quiet = trio.Event()

    @property
    def pids(self) -> tuple[int, ...]:
        """The ranks' processes."""
        return tuple(pid for rank in self._processes for pid in rank.pids)

    @property
    def ranks(self) -> tuple[Rank, ...]:
        """The ranks, the one that leads first."""
        both = enumerate(zip(self._devices, self._processes, strict=True))
        return tuple(Rank(device, each.pid, self._done[rank]) for rank, (device, each) in both)

    def close(self) -> None:
        """End all ranks."""
        for rank in self._processes:
            rank.close()

    async def run(self) -> None:
        """Deal out requests until a rank dies or `close` is called; then no process is left."""
        async with trio.open_nursery() as ranks:
            for rank in self._processes:
                ranks.start_soon(rank.run)
            death = WorkerDied(0, ())
            try:
                async with trio.open_nursery() as nursery:
                    for number in range(len(self._processes)):
                        nursery.start_soon(self._watch, number)
                    await self._deal(nursery)
            except* WorkerDied as group:
                death = _told(group)
            finally:
                self.close()
                self._die(death)
                shutil.rmtree(self._folder, ignore_errors=True)

    async def _watch(self, rank: int) -> None:
        death = await self._processes[rank].wait_death()
        raise self._death_of(rank, death.exit_code, death.stderr)

    def _death_of(self, rank: int, exit_code: int, words: Sequence[str]) -> WorkerDied:
        place = f"it was rank {rank} of {len(self._processes)}, on {self._devices[rank]}"
        return WorkerDied(exit_code, (place, *words))

    # --- requests ----------------------------------------------------------------------------

    async def _deal(self, nursery: trio.Nursery) -> None:
        async for call in self._to_send:
            if call.abandoned:
                del self._waiting[call.id]
            elif isinstance(call.request, _OWN):
                await self._alone(call)
            else:
                self._pass_on(call, nursery)

    def _pass_on(self, call: Call[Any], nursery: trio.Nursery) -> None:
        """Have one rank execute a request, beside those of others."""
        request = call.request
        rank = self._home(request) if _is_dealt(request) else 0
        submitted = self._processes[rank].submit(request, call.payloads)
        call.payloads = ()
        if isinstance(request, Save):  # its rank computes meanwhile
            nursery.start_soon(self._finish, call, submitted)
            return
        self._begun += 1
        self._busy[rank] += 1
        nursery.start_soon(self._finish_computing, call, rank, submitted)

    def _home(self, request: ForwardTask | LossTask | BackwardTask | PassTask) -> int:
        """Return the rank of a microbatch: the least busy one if it is new here."""
        homes = self._ledger.homes
        if isinstance(request, PassTask) and request.into == "loss":
            return min(range(len(self._processes)), key=lambda rank: self._busy[rank])
        if request.microbatch not in homes:
            held = Counter(homes.values())
            homes[request.microbatch] = min(
                range(len(self._processes)),
                key=lambda rank: (self._busy[rank], held[rank], self._done[rank]),
            )
            self._ledger.steps[request.microbatch] = request.step
        return homes[request.microbatch]

    async def _finish_computing(self, call: Call[Any], rank: int, submitted: Call[Any]) -> None:
        outcome = await self._outcome(submitted)
        self._begun -= 1
        self._busy[rank] -= 1
        if _is_dealt(call.request):
            self._done[rank] += 1
            # the others compute meanwhile: of the group's time it took a part
            share = replace(outcome[0], seconds=outcome[0].seconds / len(self._processes))
            outcome = share, outcome[1]
        if not isinstance(outcome[0], Failed):
            self._note(call.request, rank)
        self._answer(call, outcome)
        if not self._begun:
            self._quiet.set()

    async def _finish(self, call: Call[Any], submitted: Call[Any]) -> None:
        self._answer(call, await self._outcome(submitted))

    def _note(self, request: _Asked, rank: int) -> None:
        """Note what a rank has counted, or taken out."""
        match request:
            case LossTask() | BackwardTask():
                self._ledger.counted[request.microbatch] = rank
            case PassTask(into="less"):
                self._ledger.counted.pop(request.microbatch, None)

    def _answer(self, call: Call[Any], outcome: _Outcome) -> None:
        self._waiting.pop(call.id, None)
        call.answer = outcome
        call.done.set()

    async def _outcome(self, submitted: Call[Any]) -> _Outcome:
        try:
            return await submitted.wait()
        except RequestFailed as failure:
            return failure.failed, []

    # --- requests that nothing overlaps --------------------------------------------------------

    async def _alone(self, call: Call[Any]) -> None:
        while self._begun:
            self._quiet = trio.Event()
            await self._quiet.wait()
        request, payloads = call.request, call.payloads
        match request:
            case OpenStage():
                outcome = await self._open(request)
            case Load() | LoadStart():
                outcome = await self._load(request)
            case ContributeTask() | ApplyTask(bounds=()):
                await self._gather(request.step)
                outcome = await self._led(request, payloads)
            case ApplyTask():
                outcome = await self._led(request, payloads)
            case _:
                outcome = await self._ask_all(request)
        self._answer(call, outcome)

    async def _led(self, request: ContributeTask | ApplyTask, payloads: Any) -> _Outcome:
        """Have the first rank execute a request of a round, and the others follow."""
        outcome = await self._outcome(self._processes[0].submit(request, payloads))
        if isinstance(request, ApplyTask) and not isinstance(outcome[0], Failed):
            await self._share(request.step + 1, advanced=True)
        return outcome

    async def _open(self, request: OpenStage) -> _Outcome:
        await self._join()
        self._ledger.forget_before(math.inf)
        return await self._shared(await self._each(partial(self._opening, request)), 0)

    def _opening(self, request: OpenStage, rank: int) -> OpenStage:
        """Return the request of one rank. Only the first one keeps what rounds need."""
        ranks = len(self._processes)
        return replace(
            request,
            device=torch_name(self._devices[rank]),
            threads=_part(request.threads, ranks),
            memory_bytes=request.memory_bytes // ranks,
            follows=rank > 0,
        )

    async def _load(self, request: Load | LoadStart) -> _Outcome:
        self._ledger.forget_before(math.inf)
        if isinstance(request, LoadStart):  # all: what is frozen beside adapters is not shared
            return await self._shared(await self._each(lambda _: request), 0)
        loaded = await self._outcome(self._processes[0].submit(request))
        return await self._shared([loaded], request.version)

    async def _shared(self, outcomes: Sequence[_Outcome], version: int) -> _Outcome:
        """Return the first rank's outcome, or a failure; without one all have its version."""
        failed = [outcome for outcome in outcomes if isinstance(outcome[0], Failed)]
        if failed:
            return failed[0]
        await self._share(version, advanced=False)
        return outcomes[0]

    async def _ask_all(self, request: _Asked) -> _Outcome:
        """Have all ranks execute a request; their outcomes as one."""
        outcomes = await self._each(lambda rank: self._for_rank(request, rank))
        replies = [reply for reply, _ in outcomes]
        failed = next((reply for reply in replies if isinstance(reply, Failed)), None)
        if failed is not None:
            return failed, []
        probed = [reply for reply in replies if isinstance(reply, Probed)]
        if probed:
            kinds = [reply.device.partition(":")[0] for reply in probed]
            unlike = self._unlike(kinds)
            return unlike or together(probed), []
        return outcomes[0]

    def _for_rank(self, request: _Asked, rank: int) -> _Asked:
        if not isinstance(request, Probe):
            return request
        device = torch_name(self._devices[rank])
        threads = _part(request.threads, len(self._processes))
        return replace(request, device=device, threads=threads)

    async def _each(self, request: Callable[[int], _Asked]) -> list[_Outcome]:
        """Ask all ranks at once; their outcomes, in order."""
        asked = [rank.submit(request(place)) for place, rank in enumerate(self._processes)]
        return [await self._outcome(each) for each in asked]

    # --- collective operations -----------------------------------------------------------------

    async def _join(self) -> None:
        """Have the ranks find each other."""
        if self._joined:
            return
        requests = {
            rank: JoinGroup(
                rank=rank,
                size=len(self._devices),
                device=torch_name(device),
                meet=str(self._folder / "meet"),
                timeout_s=self._timeout_s,
            )
            for rank, device in enumerate(self._devices)
        }
        await self._collective(requests)
        self._joined = True

    def _unlike(self, kinds: Sequence[str]) -> Failed | None:
        """Return that ranks have devices of different kinds; None: they have not."""
        for rank, kind in enumerate(kinds):
            if kind != kinds[0]:
                words = (
                    f"rank {rank} computes on {kind}, and the first rank on {kinds[0]}: all need "
                    "devices of one kind"
                )
                return Failed(kind="shape", message=words)
        return None

    async def _gather(self, step: int) -> None:
        """Move what other ranks have counted of a step to the first one."""
        counted = self._ledger.in_sums(step)
        taking_part = [rank for rank, theirs in enumerate(counted) if theirs or not rank]
        if len(taking_part) > 1:
            request = GatherSum(step=step, counted=counted)
            await self._collective(dict.fromkeys(taking_part, request))
            self._ledger.gathered(step)

    async def _share(self, version: int, *, advanced: bool) -> None:
        """Give all ranks the first one's version, and compare what they have then."""
        self._ledger.forget_before(version)
        request = ShareVersion(version=version, advanced=advanced)
        replies = await self._collective(dict.fromkeys(range(len(self._processes)), request))
        for rank, reply in enumerate(replies):
            if reply.digest != replies[0].digest:
                raise self._death_of(rank, -signal.SIGKILL, ("its parameters are not the first's",))

    async def _collective(self, requests: Mapping[int, Request[Any]]) -> list[Any]:
        """Have ranks do something together; their replies.

        Raises:
            WorkerDied: one has failed, or is not done in time.
        """
        asked = {rank: self._processes[rank].submit(each) for rank, each in requests.items()}
        replies = []
        for rank, submitted in asked.items():
            try:
                with trio.fail_after(self._timeout_s + _MARGIN_S):
                    replies.append((await submitted.wait())[0])
            except RequestFailed as failure:
                await trio.sleep(_BLAME_S)  # if another has died, that is the reason
                raise self._death_of(rank, -signal.SIGKILL, (str(failure),)) from None
            except trio.TooSlowError:
                words = f"it had not answered the other ranks for {self._timeout_s} s"
                raise self._death_of(rank, -signal.SIGKILL, (words,)) from None
        return replies


def together(probed: Sequence[Probed]) -> Probed:
    """Return what ranks have measured at the same time as that of one device: its speed is that of
    all, its memory what a stage may take in each."""
    first = probed[0]
    on_cpu = first.device.startswith("cpu")
    memory = len(probed) if on_cpu else 1  # graphics cards have their own
    rates = [
        MatmulRate(of.size, of.dtype, math.fsum(each.rates[place].flop_per_s for each in probed))
        for place, of in enumerate(first.rates)
    ]
    return Probed(
        seconds=max(each.seconds for each in probed),
        device=first.device,
        identity="; ".join(each.identity for each in probed),
        rates=rates,
        memory_total_bytes=min(each.memory_total_bytes for each in probed) // memory,
        memory_available_bytes=min(each.memory_available_bytes for each in probed) // memory,
        copy_bytes_per_s=min(each.copy_bytes_per_s for each in probed),
    )


def _is_dealt(request: _Asked) -> TypeGuard[ForwardTask | LossTask | BackwardTask | PassTask]:
    """Whether any rank may execute a request; an audit's passes belong to the first one."""
    return isinstance(request, _PASSES) and not (
        isinstance(request, PassTask) and request.into == "audit"
    )


def _part(threads: int, ranks: int) -> int:
    return max(1, threads // ranks)


def _told(group: BaseExceptionGroup[WorkerDied]) -> WorkerDied:
    """Return the death that says most: those who waited for that rank do not know which it was."""
    deaths: list[WorkerDied] = []
    for found in group.exceptions:
        deaths.append(_told(found) if isinstance(found, BaseExceptionGroup) else found)
    return max(deaths, key=lambda death: len(death.stderr))


def new_group(devices: Sequence[str], timeout_s: int = COLLECTIVE_S) -> WorkerGroup:
    """Return a worker of one process per device.

    Args:
        devices: of the ranks, of one kind; `cpu:0`, `cpu:1`: processes on the CPU.
        timeout_s: seconds after which a rank that does not take part is given up.

    Raises:
        OSError: a process cannot be started.
    """
    with ExitStack() as on_failure:
        ranks = []
        for _ in devices:
            ranks.append(WorkerProcess())
            on_failure.callback(ranks[-1].discard)
        folder = tempfile.mkdtemp(prefix="volunteer-ranks-")
        on_failure.pop_all()
    return WorkerGroup(ranks, devices, Path(folder), timeout_s)
