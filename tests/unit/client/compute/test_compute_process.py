"""The real worker process: calls, death, orphans, and the node's event loop beside it."""

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import psutil
import pytest
import trio
import trio.testing

from client.compute import process
from client.compute.process import Call, RequestFailed, Worker, WorkerDied
from client.compute.requests import Ping
from model_zoo.specs.slices import stage_parameters
from protocol.pipeline.effects import ContributeTask, ForwardTask, LossTask
from tests.support.compute_stages import open_request, tokens_of
from tests.support.workers import open_worker

pytestmark = pytest.mark.slow

TIMEOUT_S = 60


async def test_a_worker_is_started_by_the_command_that_holds_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The laboratory sets another one."""
    asked = list[object]()

    def spawn(command: object, *_: object) -> None:
        asked.append(command)
        raise OSError("enough")

    monkeypatch.setattr(process, "_spawn", spawn)
    monkeypatch.setattr(process, "WORKER_COMMAND", ("another",))
    for given in ((), ("mine",)):
        with pytest.raises(OSError, match="enough"):
            Worker(command=given)
    assert asked == [("another",), ("mine",)]


async def test_requests_are_pipelined_and_run_in_the_order_of_their_submission() -> None:
    with trio.fail_after(TIMEOUT_S):
        async with open_worker() as worker:
            opening = open_request(0, [4])
            size = stage_parameters(opening.manifest.model, [4], 0)
            await worker.call(opening)
            requests = [LossTask(step=0, microbatch=index) for index in range(8)]
            submitted = [worker.submit(one, [tokens_of(one.microbatch)]) for one in requests]
            with pytest.raises(RequestFailed) as caught:
                await worker.submit(ForwardTask(step=9, microbatch=0), [b""]).wait()
            assert caught.value.kind == "stale"
            request = ContributeTask(step=0, attempt=0, bounds=[0, size])
            reply, (shard,) = await worker.submit(request).wait()
            assert reply.counted == tuple(range(8))
            assert len(shard) > 4 * size
            os.kill(worker.pid, signal.SIGKILL)
            with pytest.raises(WorkerDied):
                await worker.submit(request).wait()
            for earlier in submitted:  # answered before the later ones, so before the death
                reply, payloads = await earlier.wait()
                assert (reply.loss_sum > 0, payloads) == (True, [])


ECHO = """
    import argparse, socket
    from client.compute.requests import Done
    from client.compute.worker import Channel, NodeGone

    parser = argparse.ArgumentParser()
    parser.add_argument("--fd", type=int)
    parser.add_argument("--parent", type=int)
    arguments = parser.parse_args()
    channel = Channel(socket.socket(fileno=arguments.fd))
    try:
        while True:
            received, payloads = channel.receive()
            channel.send(received.id, Done(words=str(received.id)), payloads)
    except NodeGone:
        pass
"""
ECHO_WORKER = (sys.executable, "-c", textwrap.dedent(ECHO))  # starts without torch, quickly
NOTHING = Ping()


@asynccontextmanager
async def echoing() -> AsyncIterator[Worker]:
    """A worker that sends back what it gets, and has got something."""
    with trio.fail_after(TIMEOUT_S):
        async with open_worker(command=ECHO_WORKER) as worker:
            await worker.call(NOTHING)
            yield worker


async def test_payloads_of_any_size_come_back_and_nothing_deadlocks() -> None:
    """Far more is under way in both directions than sockets can hold."""

    async def echo(number):
        payloads = [bytes([number]) * size for size in (0, 100, 4096, 10_000, number << 18)]
        _, echoed = await worker.submit(NOTHING, payloads).wait()
        assert echoed == payloads

    async with echoing() as worker, trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(echo, number)


async def test_a_worker_leaves_it_to_its_node_when_to_end() -> None:
    """A cluster sends SIGTERM to every process of a job; the node still has to hand over."""
    with trio.fail_after(TIMEOUT_S):
        async with open_worker() as worker:
            await worker.call(open_request(0, [4]))
            for number in (signal.SIGTERM, signal.SIGINT):
                os.kill(worker.pid, number)
            reply, _ = await worker.submit(LossTask(0, 0), [tokens_of(0)]).wait()
            assert reply.loss_sum > 0


@pytest.mark.parametrize("how", ["killed", "left"])
async def test_the_end_of_a_worker_fails_all_calls(how) -> None:
    died = []

    async def call():
        with pytest.raises(WorkerDied) as caught:
            await worker.call(NOTHING)
        died.append(caught.value)

    async with trio.open_nursery() as after, echoing() as worker, trio.open_nursery() as before:
        os.kill(worker.pid, signal.SIGSTOP)
        nursery = before if how == "killed" else after
        for _ in range(2):
            nursery.start_soon(call)
        await trio.testing.wait_all_tasks_blocked()
        if how == "killed":
            os.kill(worker.pid, signal.SIGKILL)
    assert len(died) == 2
    if how == "killed":
        assert [death.exit_code for death in died] == [-signal.SIGKILL] * 2
        assert "SIGKILL" in str(died[0])
    with pytest.raises(WorkerDied):
        await worker.call(NOTHING)


async def test_cancelled_calls_leave_the_channel_in_order() -> None:
    async with echoing() as worker:
        os.kill(worker.pid, signal.SIGSTOP)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker.submit(NOTHING, [bytes(100 << 20)]).wait)  # half sent
            nursery.start_soon(worker.submit(NOTHING, [b"not sent"]).wait)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        os.kill(worker.pid, signal.SIGCONT)
        reply, payloads = await worker.submit(NOTHING, [b"after"]).wait()
        assert (reply.words, payloads) == ("3", [b"after"])


async def test_a_worker_that_does_not_answer_in_time_counts_as_dead() -> None:
    call = Call[Any](0, NOTHING, [b"payload"])
    with pytest.raises(WorkerDied, match="it had not answered for 0 s") as caught:
        await call.wait(0.01)
    assert (caught.value.exit_code, call.abandoned, call.payloads) == (-signal.SIGKILL, True, ())


async def test_the_event_loop_runs_while_large_frames_travel() -> None:
    beats = 0

    async def beat():
        nonlocal beats
        while True:
            await trio.sleep(0)
            beats += 1

    async with echoing() as worker, trio.open_nursery() as nursery:
        nursery.start_soon(beat)
        await worker.submit(NOTHING, [bytes(100 << 20)]).wait()
        nursery.cancel_scope.cancel()
    assert beats > 50  # one write to the socket takes far less than a fiftieth of the payload


async def test_a_crash_reports_what_the_worker_said_last() -> None:
    script = "import sys; print('the last words', file=sys.stderr); sys.exit(3)"
    with trio.fail_after(TIMEOUT_S):
        async with open_worker(command=(sys.executable, "-c", script)) as worker:
            with pytest.raises(WorkerDied, match="the last words") as caught:
                await worker.call(NOTHING)
    assert caught.value.exit_code == 3
    assert caught.value.stderr == ("the last words",)


SPEAKER = """
    import socket, sys, time
    node = socket.socket(fileno=int(sys.argv[sys.argv.index("--fd") + 1]))
    node.recv(1)
    node.sendall(bytes.fromhex(sys.argv[1]))
    time.sleep(60)
"""


@pytest.mark.parametrize("garbage", [b"\0" * 100, b"\1\0\0\0\xc1"])
async def test_a_worker_that_talks_nonsense_is_ended(garbage) -> None:
    command = (sys.executable, "-c", textwrap.dedent(SPEAKER), garbage.hex())
    with trio.fail_after(TIMEOUT_S):
        async with open_worker(command=command) as worker:
            with pytest.raises(WorkerDied, match="frame") as caught:
                await worker.call(NOTHING)
    assert caught.value.exit_code == -signal.SIGTERM
    assert not psutil.pid_exists(worker.pid)


async def test_leaving_the_block_ends_a_hanging_worker() -> None:
    script = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
    with trio.fail_after(TIMEOUT_S):
        async with open_worker(command=(sys.executable, "-c", script)) as worker:
            pass
        assert not psutil.pid_exists(worker.pid)


async def test_an_error_in_the_block_is_not_wrapped_and_ends_the_worker() -> None:
    with trio.fail_after(TIMEOUT_S), pytest.raises(KeyError):
        async with open_worker(command=(sys.executable, "-c", "input()")) as worker:
            raise KeyError
    assert not psutil.pid_exists(worker.pid)


ORPHAN = """
    import os, sys, trio
    from tests.support.workers import open_worker
    from client.compute.requests import Probe

    async def main():
        async with open_worker() as worker:
            await worker.call(Probe(sizes=[8], device="cpu"))
            print(worker.pid, flush=True)
            async with trio.open_nursery() as nursery:
                # Several seconds of work: the worker does not look at its socket meanwhile.
                nursery.start_soon(worker.call, Probe(sizes=[8192] * 50, device="cpu"))
                await trio.sleep(0.5)
                os._exit(0)

    trio.run(main)
"""


def test_a_worker_does_not_outlive_its_node() -> None:
    command = [sys.executable, "-c", textwrap.dedent(ORPHAN)]
    printed = subprocess.run(command, stdout=subprocess.PIPE, timeout=TIMEOUT_S, check=True).stdout
    orphan = int(printed)
    with suppress(psutil.NoSuchProcess):
        psutil.Process(orphan).wait(timeout=TIMEOUT_S)


def test_the_node_side_imports_no_torch() -> None:
    script = (
        "import sys, client.compute.process, client.compute.memory, client.compute.checkpoint\n"
        "assert not {'torch', 'numpy'} & sys.modules.keys(), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=TIMEOUT_S)
