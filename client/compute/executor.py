"""Requests in, replies out: the worker without its process, one request at a time on each card.

State: the opened stage, if any, the owner's limit on computing, and what is not answered yet. Every
request is answered exactly once, `Save` and `HashTask` from threads of their own, all else from a
thread of each card in the order of its requests: copying a boundary to the host, sealing and
sending it takes as long as a small pass, and the next task is computed meanwhile. No exception
leaves `execute`: an error becomes a `Failed` reply and the stage stays unchanged.
"""

import sys
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from typing import assert_never

import msgspec
import torch

from client.compute import allowance, device, passes, saving
from client.compute.auditing import Auditor
from client.compute.averaging import Averager
from client.compute.cards import PASSES, Card, Cards
from client.compute.codec import Boundary
from client.compute.compiling import CompiledBlocks, compile_blocks
from client.compute.errors import ComputeError, DiskError, OutOfMemory, StaleRequest
from client.compute.payload import Buffer
from client.compute.replica import LocalReplica, Replica, is_out_of_memory, open_replica
from client.compute.requests import (
    Answer,
    AnyRequest,
    Done,
    Failed,
    Load,
    LoadStart,
    OpenStage,
    Ping,
    Probe,
    Save,
)
from client.compute.starting import load_start
from protocol.pipeline.effects import (
    ApplyTask,
    BackwardTask,
    CompareTask,
    ContributeTask,
    DecodeTask,
    ForwardTask,
    HashTask,
    KeepVersionTask,
    LossTask,
    Outcome,
    PassTask,
    ReduceTask,
    Task,
)

Send = Callable[[Answer, Sequence[Buffer]], None]
_Result = tuple[Answer, Sequence[Buffer | Boundary]]

_ROUND = ContributeTask | ReduceTask | DecodeTask | ApplyTask | CompareTask | KeepVersionTask
_COMPUTED = PASSES | _ROUND | OpenStage | Load | LoadStart | Probe | Ping
"""All but what threads of their own answer."""
_CHANGES = ApplyTask | Load | LoadStart | OpenStage
"""Requests that change the tensors of the version."""


class Executor:
    """Executes requests against the stage it holds.

    With ``owns_process`` this process does nothing else, and is held to the owner's memory limit;
    without, a stage's request is only compared with the limit.
    """

    def __init__(self, *, owns_process: bool = False) -> None:
        self._owns_process = owns_process
        self._opened: Auditor | None = None
        self._cards = Cards()
        self._saving: saving.Saving | None = None
        self._hashes, self._hashing = ThreadPoolExecutor(1, "hashing"), Future[None]()
        self._hashing.set_result(None)
        self._throttle = allowance.Throttle()

    def execute(
        self,
        request: AnyRequest,
        payloads: Sequence[Buffer],
        send: Send,
        card: Card | None = None,
    ) -> None:
        """Execute one request, and have it answered by ``send`` in a thread; payloads may be used
        until then. Without a ``card`` one is chosen, and does it in its own thread if it is one of
        several."""
        if isinstance(request, Save | HashTask):
            self._begin(request, send)
            return
        if card is None:
            card, beside_others = self._cards.begin(request)
            if beside_others:
                card.computing.submit(self.execute, request, payloads, send, card)
                return
        start = time.perf_counter()
        try:
            if card is self._cards.leader:
                self._make_way(request)
            with self._throttle.task() if isinstance(request, Task) else nullcontext():
                result = None
                while result is None:  # a pass that fails has changed nothing
                    try:
                        result = self._run(card, request, payloads)
                    except Exception as error:
                        lack = self._lack(card, request, error)
                    if result is None:
                        card.replica.graphs.clear()  # all of them can be recomputed
                        if lack:
                            card.replica.halve(lack)
                if isinstance(request, _CHANGES):
                    self._cards.share(base=isinstance(request, LoadStart))
        except Exception as error:
            result = self._failure(error, card), ()
        reply, sent = result
        if isinstance(reply, Outcome):
            shared_by = len(self._cards.all) if isinstance(request, PASSES) else 1
            seconds = (time.perf_counter() - start) / shared_by  # other cards compute meanwhile
            reply = msgspec.structs.replace(reply, seconds=seconds)
        card.answers.submit(self._answer, card, reply, sent, send)

    def close(self) -> None:
        """Wait until all requests are answered."""
        self._cards.wait()
        if self._saving is not None:
            self._saving.wait()
        self._hashing.result()

    def _answer(
        self, card: Card, reply: Answer, payloads: Sequence[Buffer | Boundary], send: Send
    ) -> None:
        try:
            sent = [each.ready() if isinstance(each, Boundary) else each for each in payloads]
        except Exception as error:
            reply, sent = self._failure(error, card), []
        try:
            send(reply, sent)
        finally:
            self._cards.answered(card)

    def _make_way(self, request: AnyRequest) -> None:
        """Have threads be done with tensors that change, and other cards with the sum."""
        if isinstance(request, _CHANGES):
            if self._saving is not None:
                self._saving.release()
            self._hashing.result()
        alone = isinstance(request, ApplyTask) and not request.bounds
        if alone or isinstance(request, ContributeTask):
            self._cards.gather()

    def _lack(self, card: Card, request: AnyRequest, error: Exception) -> str:
        """Return what memory lacks for a request, in words; empty: compiled blocks have failed.
        Raises the error if running it otherwise is no use."""
        lacks = is_out_of_memory(error)
        if isinstance(request, PASSES):
            if lacks:
                return str(error).partition("\n")[0] or "it says no more"
            blocks = card.replica.module.runner
            if isinstance(blocks, CompiledBlocks) and blocks.gives_up(error):
                traceback.print_exception(error, file=sys.stderr)
                return ""
        if lacks and card.held is not None:
            card.held.graphs.clear()
        raise error

    def _run(self, card: Card, request: _COMPUTED, payloads: Sequence[Buffer]) -> _Result:
        match request:
            case OpenStage():
                return self._open(request), ()
            case Probe():
                return device.probe(request), ()
            case Load() | LoadStart():
                self._load(request)
                return Done(), ()
            case ForwardTask():
                return passes.forward(card.replica, request, payloads)
            case LossTask() | BackwardTask():
                return passes.backward(card.replica, request, payloads)
            case PassTask(into="loss"):
                return passes.evaluate(card.replica, request, payloads)
            case PassTask(into="less"):
                return passes.subtract(card.replica, request, payloads), ()
            case PassTask():
                return self._stage.recompute(request, payloads), ()
            case ContributeTask():
                return self._stage.averager.contribute(request)
            case ReduceTask(compare_to=None):
                return self._stage.averager.reduce(request, payloads)
            case ReduceTask():
                return self._stage.sum_again(request, payloads), ()
            case DecodeTask():
                return self._stage.averager.decode_sum(request, payloads), ()
            case ApplyTask(bounds=()):
                return self._stage.averager.apply_local(request), ()
            case ApplyTask():
                return self._stage.averager.apply(request, payloads), ()
            case KeepVersionTask():
                return self._stage.keep(request), ()
            case CompareTask():
                return self._stage.compare(request, payloads), ()
            case Ping():
                return Done(), ()
            case _:
                assert_never(request)

    @property
    def _stage(self) -> Auditor:
        if self._opened is None:
            raise StaleRequest("no stage is open")
        return self._opened

    def _open(self, request: OpenStage) -> Done:
        settings, devices = request.settings, device.select_devices(request.settings.device)
        self._opened = None  # first free the memory of the previous stage
        cards = self._cards.emptied(devices)
        threads = max(1, request.threads // len(devices))
        torch.set_num_threads(threads)
        self._throttle = allowance.Throttle(settings.compute_share, on_cpu=devices[0].type == "cpu")
        for each in devices if self._owns_process else ():
            allowance.enforce(request, each)
        said: list[str] = []
        made: list[Replica] = []
        for chosen in devices:
            replica = open_replica(request, chosen, made[0] if made else None)
            device.warm_up(replica)
            if not made and not settings.threads:
                torch.set_num_threads(device.useful_threads(replica, threads))
            compiled = compile_blocks(request, replica)
            made.append(replica)
            said += [compiled] * (compiled not in said)
        opened = Auditor(Averager(made[0]))
        if len(cards) > 1:
            for card, chosen in zip(cards, devices, strict=True):
                card.begin_thread(chosen)
        for card, held in zip(cards, made, strict=True):  # all of them or none
            card.held = held
        self._opened = opened
        return Done(words="; ".join(said))

    def _load(self, request: Load | LoadStart) -> None:
        replica = self._stage.replica
        self._opened = None  # its residual goes before another comes
        try:
            if isinstance(request, LoadStart):
                load_start(replica, request)
            else:
                saving.load(replica, request)
                if isinstance(replica, LocalReplica):
                    replica.rate = request.learning_rate
        finally:
            self._opened = Auditor(Averager(replica))

    def _begin(self, request: Save | HashTask, send: Send) -> None:
        """Begin what a thread of its own completes, and answers."""

        def finish(complete: Callable[[], Answer]) -> None:
            try:
                reply = complete()
            except Exception as error:
                reply = self._failure(error)
            send(reply, ())

        try:
            replica = self._stage.replica
            if isinstance(request, Save):
                if self._saving is not None and not self._saving.ended:
                    raise DiskError("the save before this one is still being written")
                self._saving = saving.Saving(replica, request, finish)
            else:
                compute = saving.begin_hash(replica, request, self._throttle)
                self._hashing = self._hashes.submit(finish, compute)
        except Exception as error:
            send(self._failure(error), ())

    def _failure(self, error: Exception, card: Card | None = None) -> Failed:
        if is_out_of_memory(error):
            error = OutOfMemory(str(error).partition("\n")[0])
        place = "" if card is None else card.place
        if isinstance(error, ComputeError):
            said = f"{place}{error}"
            return Failed(kind=error.kind, message=said, part=error.part)
        traceback.print_exception(error, file=sys.stderr)
        return Failed(kind="internal", message=f"{place}{type(error).__name__}: {error}")
