"""Requests in, replies out: the worker without its process, one request at a time.

State: the opened stage, if any, and the owner's limit on computing. Every request is answered
exactly once, `Save` and `HashVersion` from threads of their own. No exception leaves `execute`: an
error becomes a `Failed` reply and the stage stays unchanged.
"""

import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import assert_never

import msgspec
import torch

from client.compute import allowance, device, passes, saving
from client.compute.auditing import Auditor
from client.compute.averaging import Averager
from client.compute.compiling import CompiledBlocks, compile_blocks
from client.compute.departures import Departures
from client.compute.errors import ComputeError, OutOfMemory, StageNotOpened
from client.compute.hashing import VersionHasher
from client.compute.masked_averaging import new_averager
from client.compute.payload import Buffer
from client.compute.ranks import Ranks
from client.compute.replica import Replica, open_replica
from client.compute.replies import (
    Failed,
    GroupJoined,
    Hashed,
    Loaded,
    Reply,
    Saved,
    StageOpened,
    ThreadsSet,
)
from client.compute.requests import (
    AnyRequest,
    Apply,
    Backward,
    CompareContribution,
    Contribute,
    DecodeSum,
    Forward,
    ForwardBackward,
    GatherSum,
    HashVersion,
    JoinGroup,
    KeepVersion,
    Load,
    LoadStart,
    OpenStage,
    Pass,
    Probe,
    Reduce,
    Save,
    SetThreads,
    ShareVersion,
)
from client.compute.slicing import is_out_of_memory
from client.compute.starting import load_start

Answer = Callable[[Reply, Sequence[Buffer]], None]
_Result = tuple[Reply, Sequence[Buffer]]


_DEPARTING = Forward | ForwardBackward | Backward
"""Requests whose payloads may leave while the next one is executed."""
_PASSES = Forward | ForwardBackward | Backward | Pass
_ROUND = Contribute | Reduce | DecodeSum | Apply
_TASKS = _PASSES | _ROUND | KeepVersion | CompareContribution
_CHANGES = Apply | Load | LoadStart | OpenStage | ShareVersion
"""Requests that change the tensors of the version."""
_NO_GRADIENTS = _ROUND | CompareContribution | Forward | Save | Probe | SetThreads
"""Requests that leave the gradients' scratch to the averager; so does a pass for the loss."""


@dataclass(frozen=True, slots=True)
class _Opened:
    replica: Replica
    averager: Averager
    auditor: Auditor
    blocks: CompiledBlocks | None
    departures: Departures | None


class Executor:
    """Executes requests against the stage it holds.

    With ``owns_process`` this process does nothing else, and is held to the owner's memory limit;
    without, a stage's request is only compared with the limit. ``departs`` says whether boundaries
    leave while the next task is computed; None: those of a GPU do.
    """

    def __init__(self, *, owns_process: bool = False, departs: bool | None = None) -> None:
        self._owns_process, self._departs = owns_process, departs
        self._opened: _Opened | None = None
        self._ranks: Ranks | None = None
        self._saver, self._hasher = saving.Saver(), VersionHasher()
        self._throttle = allowance.Throttle()
        self._useful_threads = sys.maxsize

    def execute(self, request: AnyRequest, payloads: Sequence[Buffer], answer: Answer) -> None:
        """Execute one request and answer it; payloads are not used after the return."""
        if isinstance(request, Save):
            self._guarded(lambda: self._start_save(request, answer), answer)
        elif isinstance(request, HashVersion):
            self._guarded(lambda: self._start_hash(request, answer), answer)
        else:
            self._execute(request, payloads, answer)

    def close(self) -> None:
        """Wait until a save or a hash under way is complete."""
        self._saver.wait()
        self._hasher.wait()
        self._close_stage()

    def _close_stage(self) -> None:
        if self._opened is not None and self._opened.departures is not None:
            self._opened.departures.close()

    def _execute(self, request: AnyRequest, payloads: Sequence[Buffer], answer: Answer) -> None:
        """Answer in the order of the requests, though boundaries may leave later."""
        departures = None if self._opened is None else self._opened.departures

        def run() -> _Result:
            if departures is None or not isinstance(request, _DEPARTING):
                return self._run_within_limit(request, payloads)
            with departures.gathering():
                return self._run_within_limit(request, payloads)

        def leave(reply: Reply, sent: Sequence[Buffer]) -> None:
            def fail(error: Exception) -> None:
                answer(self._failure(error), ())

            if departures is None or not departures.send(partial(answer, reply, sent), fail):
                answer(reply, sent)

        self._guarded(run, leave)

    def _guarded(self, run: Callable[[], _Result | None], answer: Answer) -> None:
        start = time.perf_counter()
        try:
            result = run()
        except Exception as error:
            result = self._failure(error), ()
        if result is not None:
            reply, payloads = result
            answer(msgspec.structs.replace(reply, seconds=time.perf_counter() - start), payloads)

    def _run_within_limit(self, request: AnyRequest, payloads: Sequence[Buffer]) -> _Result:
        if isinstance(request, _CHANGES):
            self._saver.release()
            self._hasher.wait()
        leaves = isinstance(request, _NO_GRADIENTS) or _is_for_loss(request)
        if self._opened is not None and not leaves:
            self._opened.averager.forget_sums()
        begin = self._throttle.begin()
        try:
            result = self._run_uncompiled_if_needed(request, payloads)
        except Exception as error:
            if is_out_of_memory(error) and self._opened is not None:
                self._opened.replica.drop_graphs()
            raise
        if isinstance(request, _TASKS):
            self._throttle.rest(begin)
        return result

    def _run_uncompiled_if_needed(self, request: AnyRequest, payloads: Sequence[Buffer]) -> _Result:
        """Run a request; a pass whose compiled blocks have failed, which changed nothing, is run
        once more without them."""
        try:
            return self._run(request, payloads)
        except Exception as error:
            opened = self._opened
            if opened is None or opened.blocks is None or not isinstance(request, _PASSES):
                raise
            if not opened.blocks.gives_up(error):
                raise
            traceback.print_exception(error, file=sys.stderr)
        opened.replica.drop_graphs()  # of compiled blocks
        return self._run(request, payloads)

    def _run(self, request: AnyRequest, payloads: Sequence[Buffer]) -> _Result:
        match request:
            case OpenStage():
                return self._open(request), ()
            case Probe():
                return device.probe(request), ()
            case Load() | LoadStart():
                return self._load(request), ()
            case Forward():
                return passes.forward(self._stage.replica, request, payloads)
            case ForwardBackward():
                return passes.forward_backward(self._stage.replica, request, payloads)
            case Backward():
                return passes.backward(self._stage.replica, request, payloads)
            case Pass(into="loss"):
                return passes.evaluate(self._stage.replica, request, payloads)
            case Pass(into="less"):
                return passes.subtract(self._stage.replica, request, payloads), ()
            case Pass():
                return self._stage.auditor.recompute(request, payloads), ()
            case Contribute():
                return self._stage.averager.contribute(request)
            case Reduce(own=None):
                return self._stage.auditor.sum_again(request, payloads), ()
            case Reduce():
                return self._stage.averager.reduce(request, payloads)
            case DecodeSum():
                return self._stage.averager.decode_sum(request, payloads), ()
            case Apply(bounds=[]):
                return self._stage.averager.apply_local(request), ()
            case Apply():
                return self._stage.averager.apply(request, payloads), ()
            case KeepVersion():
                return self._stage.auditor.keep(request), ()
            case CompareContribution():
                return self._stage.auditor.compare(request, payloads), ()
            case SetThreads():
                torch.set_num_threads(min(request.threads, self._useful_threads))
                return ThreadsSet(), ()
            case JoinGroup():
                self._ranks = Ranks(request)
                return GroupJoined(), ()
            case GatherSum():
                found = self._stage.auditor.slot if request.audited else self._stage.replica.at
                return self._group.gather(found(request.step), request), ()
            case ShareVersion():
                if not request.advanced:
                    self._stage.auditor.forget()
                return self._group.share(self._stage.replica, request), ()
            case Save() | HashVersion():
                raise AssertionError("these are answered from threads of their own")
            case _:
                assert_never(request)

    @property
    def _stage(self) -> _Opened:
        if self._opened is None:
            raise StageNotOpened("no stage is open")
        return self._opened

    @property
    def _group(self) -> Ranks:
        if self._ranks is None:
            raise StageNotOpened("this process has joined no group")
        return self._ranks

    def _open(self, request: OpenStage) -> StageOpened:
        chosen = device.select_device(request.device)
        self._close_stage()
        self._opened = None  # first free the memory of the previous stage
        if self._owns_process:
            allowance.enforce(request, chosen)
        torch.set_num_threads(request.threads)
        self._throttle = allowance.Throttle(request.compute_share, on_cpu=chosen.type == "cpu")
        departs = chosen.type == "cuda" if self._departs is None else self._departs
        departures = Departures() if departs else None
        cutting = self._group.cutting(request, chosen) if request.ranks > 1 else None
        replica = open_replica(request, chosen, cutting, departures)
        device.warm_up(replica)
        self._choose_threads(request, replica)
        averager = new_averager(replica, request.aggregation)
        blocks, compiled = compile_blocks(request, replica, chosen)
        auditor = Auditor(replica, averager)
        self._opened = _Opened(replica, averager, auditor, blocks, departures)
        return StageOpened(
            parameters=replica.size,
            state_bytes=replica.held_bytes + averager.residual_bytes,
            hash=replica.state_hash() if replica.team.leads else "",
            compiled=compiled,
        )

    def _choose_threads(self, request: OpenStage, replica: Replica) -> None:
        """Use as many threads as help, now and when more are allowed."""
        self._useful_threads = sys.maxsize
        if request.choose_threads and replica.team.size == 1:  # each would time something else
            useful = device.useful_threads(replica, request.threads)
            if useful < request.threads:
                self._useful_threads = useful
                torch.set_num_threads(useful)

    def _load(self, request: Load | LoadStart) -> Loaded:
        replica = self._stage.replica
        if isinstance(request, LoadStart):
            loaded = load_start(replica, request)
        else:
            loaded = saving.load(replica, request)
            if replica.inner is not None:
                replica.inner.rate = request.learning_rate
        self._stage.averager.forget()
        self._stage.auditor.forget()
        return loaded

    def _start_save(self, request: Save, answer: Answer) -> None:
        def finish(write: Callable[[], Saved]) -> None:
            self._guarded(lambda: (write(), ()), answer)

        self._saver.start(self._stage.replica, request, finish)

    def _start_hash(self, request: HashVersion, answer: Answer) -> None:
        def finish(compute: Callable[[], Hashed]) -> None:
            self._guarded(lambda: (compute(), ()), answer)

        self._hasher.start(self._stage.replica, request, self._throttle, finish)

    def _failure(self, error: Exception) -> Failed:
        if is_out_of_memory(error):
            error = OutOfMemory(str(error).partition("\n")[0])
        if isinstance(error, ComputeError):
            said = str(error)
            return Failed(kind=error.kind, message=said, part=error.part, parts=error.parts)
        traceback.print_exception(error, file=sys.stderr)
        return Failed(kind="internal", message=f"{type(error).__name__}: {error}")


def _is_for_loss(request: AnyRequest) -> bool:
    return isinstance(request, Pass) and request.into == "loss"
