"""Hosts of a job: who is let in, what strangers can do, and how ranks are reached."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import msgspec
import pytest
import trio
import trio.testing
from msgspec.structs import replace

from client.compute.hosts import following as following_module
from client.compute.hosts import leading as leading_module
from client.compute.hosts import link as link_module
from client.compute.hosts import rank as rank_module
from client.compute.hosts.following import Following
from client.compute.hosts.job import Job
from client.compute.hosts.leading import HostsMissing
from client.compute.hosts.link import Link, LinkBroken, WrongKey, connect
from client.compute.hosts.messages import (
    FROM_LEADER,
    MAX_MESSAGE_BYTES,
    HostHere,
    RankHere,
    StoreHere,
    Welcome,
    hear,
    tell,
)
from client.compute.process import RequestFailed, Worker, WorkerDied, open_worker, running
from client.compute.requests import Drop, LoadStart, OpenStage
from client.errors import ExitCode, UserError
from tests.support.compute_stages import open_request
from tests.support.echo_worker import ECHO_WORKER
from tests.support.hosts import HOST, KEY, VERSION, job, leading

TIMEOUT_S = 60
NOTHING = Drop(microbatches=[])
Ends = tuple[trio.SocketStream, trio.SocketStream]


@pytest.fixture(autouse=True)
async def in_time() -> AsyncIterator[None]:
    with trio.fail_after(TIMEOUT_S):
        yield


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following_module, "_AGAIN_S", 0.01)


def ends() -> Ends:
    ours, theirs = trio.socket.socketpair()
    return trio.SocketStream(ours), trio.SocketStream(theirs)


async def linked(streams: Ends, *keys: bytes) -> tuple[list[Link], list[LinkBroken]]:
    """Connect both ends; the links, the dialler's first, and what failed."""
    links: dict[bool, Link] = {}
    failures: list[LinkBroken] = []

    async def end(stream: trio.SocketStream, key: bytes, *, dials: bool) -> None:
        try:
            links[dials] = await connect(stream, key, dials=dials)
        except LinkBroken as error:
            failures.append(error)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(end, streams[0], keys[0], dials=True))
        nursery.start_soon(partial(end, streams[1], keys[-1], dials=False))
    return [links[dials] for dials in (True, False) if dials in links], failures


async def test_what_is_sent_arrives_both_ways_and_encrypted() -> None:
    (one, other), _ = await linked(ends(), KEY)
    data = os.urandom(3_000_000)

    async def send(link: Link) -> None:
        await link.send_all(data)

    async def receive(link: Link) -> None:
        found = b""
        while len(found) < len(data):
            found += await link.receive_some(100_000)
        assert found == data

    async with trio.open_nursery() as nursery:
        for link in (one, other):
            nursery.start_soon(send, link)
            nursery.start_soon(receive, link)
    await one.aclose()
    assert await other.receive_some() == b""
    await other.aclose()


async def test_both_ends_notice_another_key() -> None:
    links, failures = await linked(ends(), KEY, bytes(32))
    assert not links
    assert [type(failure) for failure in failures] == [WrongKey, WrongKey]


async def test_bytes_that_somebody_changed_are_refused() -> None:
    streams = ends()
    (one, other), _ = await linked(streams, KEY)
    sealed = bytearray(one._seal(b"hello"))
    sealed[-1] ^= 1
    await streams[0].send_all(bytes(sealed))
    with pytest.raises(trio.BrokenResourceError):
        await other.receive_some()
    await one.aclose()
    await other.aclose()


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n" + bytes(64),
        b"VHL1" + bytes(32),
        b"VHL1" + b"\x09" * 32 + b"\xff\xff\xff\xff",
        b"VHL1" + b"\x09" * 32 + b"\x1e\0\0\0" + bytes(30),
        b"VHL1" + b"\x09" * 32 + b"\0\0\0\0",
        b"V",
    ],
)
async def test_garbage_is_no_handshake(garbage: bytes) -> None:
    ours, theirs = ends()
    await theirs.send_all(garbage)
    await theirs.send_eof()
    with pytest.raises(LinkBroken):
        await connect(ours, KEY, dials=False)
    await theirs.aclose()


async def test_who_says_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "HANDSHAKE_S", 0.05)
    ours, theirs = ends()
    with pytest.raises(LinkBroken, match="no handshake"):
        await connect(ours, KEY, dials=False)
    await theirs.aclose()


# --- hosts ---------------------------------------------------------------------------------------


def another(place: Job, index: int = 1, **changes: Any) -> Following:
    """Another host of a job, in this process."""
    given = {"device": "cpu", "version": VERSION, "wait_s": 60.0, **changes}
    of_host = Job(place.hosts, index, HOST, place.port, given.pop("key", KEY))
    return Following(of_host, given["device"], given["version"], print, given["wait_s"])


@asynccontextmanager
async def following(host: Following) -> AsyncIterator[trio.Event]:
    """Another host for the length of the block; the event has it leave."""
    leave = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(host.run, leave)
        yield leave
        nursery.cancel_scope.cancel()


async def test_strangers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the bound they are closed at once; when they have gone, a host gets in."""
    most = 3
    monkeypatch.setattr(leading_module, "MOST_STRANGERS", most)
    place = job()
    async with leading(place) as hosts:
        strangers = [await trio.open_tcp_stream(HOST, place.port) for _ in range(3 * most)]
        greeted = [await stranger.receive_some(100) for stranger in strangers]
        assert sorted(map(len, greeted)) == [0] * (2 * most) + [36] * most
        for stranger in strangers:
            await stranger.aclose()
        async with following(another(place)):
            (host,) = await hosts.all_here()
            assert host.index == 1


async def test_a_host_with_another_key_is_refused() -> None:
    said: list[str] = []
    place = job()
    async with leading(place, explain=said.append):
        with pytest.raises(UserError, match="holds another key") as caught:
            await another(place, key=bytes(32)).run(trio.Event())
    assert caught.value.exit_code == ExitCode.REFUSED
    assert said == ["somebody without the job's key was turned away; others go unsaid"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"version": "2"}, "runs volunteer 2, the first host 1"),
        ({"device": "cpu:0,cpu:1"}, "has --devices cpu:0,cpu:1, the first host cpu"),
        ({"index": 2}, "is host 2, and the first host expects 2 in all"),
    ],
)
async def test_a_host_that_does_not_fit_is_told_why(changes: dict[str, Any], words: str) -> None:
    said: list[str] = []
    place = job()
    async with leading(place, explain=said.append):
        with pytest.raises(UserError, match=words) as caught:
            await another(place, **changes).run(trio.Event())
    assert caught.value.exit_code == ExitCode.CONFIG
    assert any(words in line for line in said)


async def test_two_hosts_with_one_index_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following_module, "_REFUSALS_S", 0.0)
    place = job()
    async with leading(place) as hosts, following(another(place)):
        await hosts.all_here()
        with pytest.raises(UserError, match="is host 1, and so is"):
            await another(place).run(trio.Event())


async def test_a_missing_host_is_named() -> None:
    place, said = job(3), list[str]()
    async with leading(place, explain=said.append, wait_s=0.0) as hosts, following(another(place)):
        while not any(words.startswith("host 1 of 3 is here") for words in said):
            await trio.sleep(0.01)
        with pytest.raises(HostsMissing, match="host 2 of 3"):
            await hosts.all_here()
    assert "waiting for host 2 of 3 (numbered from 0)" in said


async def test_a_host_comes_back_after_its_connection_is_lost() -> None:
    place = job()
    async with leading(place) as hosts, following(another(place)):
        (before,) = await hosts.all_here()
        await before.link.aclose()
        await before.gone.wait()
        (after,) = await hosts.all_here()
        assert (after.process, after is before) == (before.process, False)


async def test_a_host_that_is_told_to_end_goes_on_until_the_volunteer_has_left() -> None:
    place, codes = job(), list[int]()

    async def follow(leave: trio.Event) -> None:
        codes.append(await another(place).run(leave))

    async with leading(place) as hosts, trio.open_nursery() as nursery:
        leave = trio.Event()
        nursery.start_soon(follow, leave)
        (host,) = await hosts.all_here()
        leave.set()
        await hosts.asked_to_leave.wait()
        assert not codes
        assert not host.gone.is_set()
        await hosts.end(ExitCode.TEMPORARY)
    assert codes == [ExitCode.TEMPORARY]


async def test_a_host_without_a_first_one_gives_up_or_leaves() -> None:
    with pytest.raises(UserError, match="was not there for 0 s") as caught:
        await another(job(), wait_s=0.05).run(trio.Event())
    assert caught.value.exit_code == ExitCode.TEMPORARY
    leave = trio.Event()
    leave.set()
    assert await another(job()).run(leave) == ExitCode.TEMPORARY


async def test_only_the_ports_of_stores_are_reached() -> None:
    place = job()

    async def echo(stream: trio.SocketStream) -> None:
        await stream.send_all(await stream.receive_some(100))

    async with leading(place) as hosts, trio.open_nursery() as nursery:
        serve = partial(trio.serve_tcp, echo, 0, host=HOST)
        (listener,) = await nursery.start(serve)
        port = listener.socket.getsockname()[1]
        for allowed in (False, True):
            if allowed:
                hosts.stores.add(port)
            stream = await trio.open_tcp_stream(HOST, place.port)
            link = await connect(stream, KEY, dials=True)
            await tell(link, StoreHere(port=port))
            if allowed:
                await link.send_all(b"hello")
            assert await link.receive_some() == (b"hello" if allowed else b"")
            await link.aclose()
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("size", [5, MAX_MESSAGE_BYTES + 1, 2**32 - 1])
async def test_a_host_that_talks_nonsense_is_closed(size: int) -> None:
    place = job()
    async with leading(place):
        link = await connect(await trio.open_tcp_stream(HOST, place.port), KEY, dials=True)
        await link.send_all(size.to_bytes(4, "little") + b"\xc1" * 5)
        assert await link.receive_some() == b""
        await link.aclose()


async def test_a_rank_that_nobody_asked_for_is_closed() -> None:
    place = job()
    async with leading(place):
        link = await connect(await trio.open_tcp_stream(HOST, place.port), KEY, dials=True)
        await tell(link, RankHere(ticket=bytes(16)))
        assert await link.receive_some() == b""
        await link.aclose()


# --- ranks ---------------------------------------------------------------------------------------


@asynccontextmanager
async def echoing(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Worker, list[int]]]:
    """A rank on another host that sends back what it gets; and its process id."""
    pids: list[int] = []

    @asynccontextmanager
    async def echo_worker() -> AsyncIterator[Worker]:
        async with open_worker(command=ECHO_WORKER) as worker:
            pids.append(worker.pid)
            yield worker

    monkeypatch.setattr(rank_module, "open_worker", echo_worker)
    place = job()
    async with leading(place) as hosts, following(another(place)):
        (host,) = await hosts.all_here()
        async with running(hosts.rank(host)) as worker:
            yield worker, pids


async def test_payloads_of_any_size_come_back_from_another_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def echo(worker: Worker, number: int) -> None:
        payloads = [bytes([number]) * size for size in (0, 100, 4096, 10_000, number << 18)]
        _, echoed = await worker.call(NOTHING, payloads)
        assert echoed == payloads

    async with echoing(monkeypatch) as (worker, _), trio.open_nursery() as nursery:
        for number in range(12):
            nursery.start_soon(echo, worker, number)


@pytest.mark.parametrize("kind", [LoadStart, OpenStage])
async def test_a_file_that_another_host_does_not_see_is_named(
    kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = LoadStart(path="/nowhere/start", digest="ab")
    request = start if kind is LoadStart else open_request(0, [4], corpus="/nowhere/text")
    async with echoing(monkeypatch) as (worker, _):
        with pytest.raises(RequestFailed, match="does not see /nowhere/") as caught:
            await worker.call(request)
        assert caught.value.kind == "shape", "no fault of the file, which would be fetched again"


async def test_a_file_that_another_host_sees_is_left_to_its_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with echoing(monkeypatch) as (worker, _):
        with pytest.raises(WorkerDied, match="worker answered Dropped"):  # as this one always does
            await worker.call(LoadStart(path=__file__, digest="ab"))


async def test_a_killed_process_of_another_host_is_a_death(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with echoing(monkeypatch) as (worker, pids):
        await worker.call(NOTHING)
        os.kill(pids[0], signal.SIGKILL)
        death = await worker.wait_death()
        assert death.exit_code == -signal.SIGKILL
        with pytest.raises(WorkerDied):
            await worker.call(NOTHING)


async def test_a_lost_host_is_the_death_of_its_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_module, "open_worker", partial(open_worker, command=ECHO_WORKER))
    place = job()
    async with leading(place) as hosts:
        async with following(another(place)):
            (host,) = await hosts.all_here()
            rank = hosts.rank(host)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(rank.run)
                await rank.call(NOTHING)
                await host.link.aclose()
                death = await rank.wait_death()
        assert "is gone" in str(death)
        late = hosts.rank(host)
        await late.run()
        assert "the connection broke" in str(await late.wait_death())


async def test_a_leader_that_is_gone_ends_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    async with echoing(monkeypatch) as (worker, pids):
        await worker.call(NOTHING)
        worker.close()
        await worker.wait_death()
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)


async def test_messages_of_a_host_are_bounded() -> None:
    long = HostHere(index=1, process=bytes(16), name="a" * 300, device="cpu", version="1")
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode(long), type=HostHere)
    (one, other), _ = await linked(ends(), KEY)
    await tell(one, Welcome())
    assert await hear(other, FROM_LEADER) == Welcome()
    await tell(one, replace(long, name="a"))
    with pytest.raises(LinkBroken, match="no message"):
        await hear(other, FROM_LEADER)
    await one.aclose()
    await other.aclose()
