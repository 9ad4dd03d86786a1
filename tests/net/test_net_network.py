"""Links on real sockets: both lanes, backpressure, reconnects, crossing dials."""

import os
import signal
import sys

import pytest
import trio
import trio.testing

from client.errors import first_of
from client.net import libp2p_network
from client.net.addresses import parse_destination
from client.net.errors import AddressError, DialError
from client.net.libp2p_network import EVENT_BYTES, Libp2pNetwork, open_network
from client.net.links import WINDOW_BYTES
from client.net.network import Inbound, PeerDown, PeerUp
from client.net.tcp import TCP
from protocol.errors import LocalProtocolError
from protocol.ids import PeerId
from protocol.wire.messages import Backward, Goodbye, Message
from tests.support.arrivals import backward, buffered_bytes, is_up, next_inbound, say, until
from tests.support.loopback import Networks


async def test_messages_arrive_typed_whole_and_in_order(networks: Networks) -> None:
    payloads = [b"", b"x", os.urandom(512 * 1024), os.urandom(20 * 1024 * 1024)]
    async with networks() as a, networks() as b:
        assert await b.connect(a.addresses[0]) == a.peer_id
        assert await b.connect(a.addresses[0]) == a.peer_id  # is up already
        assert await a.events.receive() == PeerUp(b.peer_id)
        assert await b.events.receive() == PeerUp(a.peer_id)
        for number, payload in enumerate(payloads):
            await say(b, a.peer_id, backward(number), payload)
        for number, payload in enumerate(payloads):
            assert await next_inbound(a) == Inbound(b.peer_id, backward(number), payload)
        a.post(b.peer_id, Goodbye("3"))  # and back, on the other lane
        assert await next_inbound(b) == Inbound(a.peer_id, Goodbye("3"), b"")
        with pytest.raises(LocalProtocolError):
            a.post(b.peer_id, Goodbye("no payload in this lane"), b"x")


async def test_a_boundary_larger_than_any_queue_arrives_whole(networks: Networks) -> None:
    """A context of 131,072 tokens makes such tensors; queues hold half as much."""
    payload = os.urandom(2**20) * 130
    async with networks() as a, networks() as b:
        for network in (a, b):
            network.expect_payloads(len(payload), len(payload), 0)
        await b.connect(a.addresses[0])
        await say(b, a.peer_id, backward(0), payload)
        await say(b, a.peer_id, backward(1), b"after it")
        assert (await next_inbound(a)).payload == payload
        assert (await next_inbound(a)).payload == b"after it"


async def test_statistics_and_round_trip(networks: Networks) -> None:
    async with networks() as a, networks() as b:
        await b.connect(a.addresses[0])
        await is_up(a, b)
        near, far = a.working()[b.peer_id].session, b.working()[a.peer_id].session
        await until(lambda: near.rtt_s and far.rtt_s)
        before = b.statistics()
        assert 0 < (far.rtt_s or 0) < 10
        await say(b, a.peer_id, backward(0), bytes(100_000))
        await next_inbound(a)
        after = b.statistics()
        assert after.peers == (a.peer_id,)
        assert after.bytes_out - before.bytes_out > 100_000
        assert a.statistics().bytes_in > 100_000
        await until(lambda: b.statistics().tensor_bytes_out != before.tensor_bytes_out)
        b.post(a.peer_id, Goodbye("no tensor"))
        await next_inbound(a)
        assert 0 < b.statistics().tensor_bytes_out - before.tensor_bytes_out - 100_000 < 200
        await b.disconnect(a.peer_id, "done")
        await until(lambda: not b.statistics().peers)
        ended = b.statistics()  # ended links still count
        assert ended.bytes_out >= after.bytes_out
        assert ended.tensor_bytes_out > 100_000


async def test_what_cannot_be_reached(networks: Networks) -> None:
    stranger = PeerId("12D3KooWGC6TvWhfapngX6wvJHMYvKpDMXPb3ZnCZ6dMoaMtimQ5")
    async with networks() as a:
        assert not a.post(stranger, Goodbye(""))
        with pytest.raises(DialError, match=r"/ip4/127\.0\.0\.1/tcp/1/.*refused"):
            await a.connect(f"/ip4/127.0.0.1/tcp/1/p2p/{stranger}")
        with pytest.raises(DialError, match=r"no-such-name\.invalid"):
            await a.connect(f"/dns4/no-such-name.invalid/tcp/1/p2p/{stranger}")
        for name in ("x" * 100, "a..b"):
            with pytest.raises(AddressError, match="cannot dial"):
                await a.connect(f"/dns4/{name}/tcp/1/p2p/{stranger}")


# --- flow ------------------------------------------------------------------------------------


async def test_backpressure_reaches_the_sender_and_loses_nothing(networks: Networks) -> None:
    size = 4 * 1024 * 1024
    async with networks() as a, networks() as b:
        await b.connect(a.addresses[0])
        sent = 0
        with trio.move_on_after(0.5) as waiting:  # nobody reads a's events
            while True:
                await say(b, a.peer_id, backward(sent), bytes(size))
                sent += 1
        assert waiting.cancelled_caught
        held = a.events.size_bytes + sum(
            buffered_bytes(carrier.connection.session) for carrier in _carriers(a)
        )
        assert held <= EVENT_BYTES + WINDOW_BYTES["bulk"] + size
        assert b.post(a.peer_id, Goodbye("9"))  # the other lane has room
        seen = [(await next_inbound(a)).message for _ in range(sent + 1)]
        assert [m for m in seen if isinstance(m, Backward)] == [backward(i) for i in range(sent)]


def _carriers(network: Libp2pNetwork):  # type: ignore[no-untyped-def]
    return [carrier for link in network._links.values() for carrier in link.carriers]


async def test_the_windows_of_lanes_may_grow(networks: Networks) -> None:
    async with networks() as a, networks() as b:
        await b.connect(a.addresses[0])
        await is_up(a, b)
        session, most = a.direct(b.peer_id).session, sorted(WINDOW_BYTES.values())
        theirs = [stream for number, stream in session._streams.items() if number % 2]
        await until(lambda: sorted(one._window.most_bytes for one in theirs) == most)


# --- coming and going -----------------------------------------------------------------------


async def test_crossing_dials_end_in_one_link(networks: Networks) -> None:
    for _ in range(10):
        async with networks() as a, networks() as b:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(a.connect, b.addresses[0])
                nursery.start_soon(b.connect, a.addresses[0])
            for number in range(20):
                await say(a, b.peer_id, Goodbye(str(number)))
                await say(b, a.peer_id, Goodbye(str(number)))
            for network, other in ((a, b), (b, a)):
                assert await network.events.receive() == PeerUp(other.peer_id)
                for number in range(20):
                    event = await network.events.receive()
                    assert event.message == Goodbye(str(number))
            await until(lambda: len(_carriers(a)) + len(_carriers(b)) <= 2)
            assert len(a.events) == len(b.events) == 0  # and no PeerDown


async def test_a_wanted_peer_comes_back_after_its_restart(networks: Networks) -> None:
    seed = os.urandom(32)
    async with networks() as a:
        async with networks(seed) as b:
            peer, port = b.peer_id, parse_destination(b.addresses[0]).port
            a.want({peer: b.addresses})
            assert await a.events.receive() == PeerUp(peer)
        down = await a.events.receive()
        assert isinstance(down, PeerDown)
        assert down.peer == peer
        async with networks(seed, port) as b:
            assert await a.events.receive() == PeerUp(peer)
            await say(a, peer, Goodbye("1"))
            assert (await next_inbound(b)).peer == a.peer_id
            a.want({})
            assert a.statistics().peers == (peer,)  # not wanting is not cutting


async def test_disconnect_flushes_first(networks: Networks) -> None:
    async with networks() as a, networks() as b:
        b.want({a.peer_id: a.addresses})
        messages: list[Message] = [Goodbye(str(i)) for i in range(50)]
        for message in messages:
            await say(b, a.peer_id, message)
        await b.disconnect(a.peer_id, "leaving")
        assert await a.events.receive() == PeerUp(b.peer_id)
        for message in messages:
            assert await a.events.receive() == Inbound(b.peer_id, message, b"")
        assert await a.events.receive() == PeerDown(b.peer_id, "closed by the peer")


CHILD = """
import os, sys, trio
from client.net.libp2p_network import open_network
async def main():
    async with open_network(os.urandom(32), ("127.0.0.1", 0)) as network:
        await network.connect(sys.argv[1])
        await trio.sleep_forever()
trio.run(main)
"""


@pytest.mark.slow
async def test_a_killed_process_is_noticed_at_once(networks: Networks) -> None:
    async with networks() as a:
        child = await trio.lowlevel.open_process([sys.executable, "-c", CHILD, a.addresses[0]])
        up = await a.events.receive()
        assert isinstance(up, PeerUp)
        child.send_signal(signal.SIGKILL)
        with trio.fail_after(4):  # less than any timer: only the closed connection can tell
            assert await a.events.receive() == PeerDown(up.peer, "closed by the peer", by_peer=True)
        await child.wait()


async def test_an_error_in_the_block_gets_out_of_it() -> None:
    """Closing cancels all waits of the network; the error must not be lost with them."""
    with pytest.raises(ExceptionGroup) as caught:
        async with open_network(os.urandom(32), ("127.0.0.1", 0)):
            raise DialError("nobody is there")
    assert str(first_of(caught.value, DialError)) == "nobody is there"


class Wakings(trio.abc.Instrument):
    """Counts how often the tasks that keep wanted links wake up."""

    count = 0

    def task_scheduled(self, task: trio.lowlevel.Task) -> None:
        self.count += task.name.endswith("Libp2pNetwork._keep")


async def test_those_who_keep_links_sleep_while_nothing_changes_for_them(
    networks: Networks,
) -> None:
    """The client says whom it wants at each look at its members: many times a second."""
    async with networks() as a, networks() as b:
        a.want({b.peer_id: b.addresses})
        await is_up(a, b)
        await trio.testing.wait_all_tasks_blocked(0.05)
        wakings = Wakings()
        trio.lowlevel.add_instrument(wakings)
        for _ in range(20):
            a.want({b.peer_id: list(b.addresses)})
            await trio.testing.wait_all_tasks_blocked()
        for _ in range(3):
            async with networks() as stranger:
                await stranger.connect(a.addresses[0])
                await is_up(a, stranger)
            await until(lambda: stranger.peer_id not in a.statistics().peers)
        assert not wakings.count
        a.want({b.peer_id: (*b.addresses, "/ip4/192.0.2.1/tcp/9")})
        await trio.testing.wait_all_tasks_blocked()
        trio.lowlevel.remove_instrument(wakings)
        assert wakings.count == 1, "another address may be a better way"
        await a.disconnect(b.peer_id, "done")


async def test_in_another_network_ports_and_relays_are_learnt_anew(
    networks: Networks, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = list[str]()
    async with networks() as a:
        monkeypatch.setattr(TCP, "network_changed", lambda: told.append("ports"))
        monkeypatch.setattr(a.reaching, "renew", lambda: told.append("relays"))
        a.reached = True
        a.network_changed()
        assert not a.reached, "who could be dialled at home may be behind a router here"
    assert told == ["ports", "relays"]


async def test_who_is_expelled_is_cut_off_and_stays_out(networks: Networks) -> None:
    async with networks() as a, networks() as b:
        await b.connect(a.addresses[0])
        assert await a.events.receive() == PeerUp(b.peer_id)
        a.expel(b.peer_id, "it lies")
        assert await a.events.receive() == PeerDown(b.peer_id, "expelled: it lies")
        with pytest.raises(DialError, match="banned"):
            await a.connect(b.addresses[0])
        with pytest.raises(DialError):
            await b.connect(a.addresses[0])
        assert a.statistics().refused["banned"]
        assert a.statistics().peers == ()


async def test_the_ends_of_a_link_are_those_of_both_sides(networks: Networks) -> None:
    async with networks() as a, networks() as b:
        assert a.ends(b.peer_id) is None
        assert await a.probe(b.peer_id, 1) is None
        await b.connect(a.addresses[0])
        await is_up(a, b)
        ours, theirs = a.ends(b.peer_id), b.ends(a.peer_id)
        assert ours is not None
        assert theirs is not None
        assert (ours.dialled, theirs.dialled) == (False, True)
        assert (ours.host, theirs.host) == ("127.0.0.1", "127.0.0.1")
        assert (ours.port, ours.own_port) == (theirs.own_port, theirs.port)
        connection = a.direct(b.peer_id)
        assert connection is not None
        connection.punched = True
        assert a.ends(b.peer_id) is None, "our router was open for this peer"


@pytest.mark.parametrize("public", [True, False])
async def test_who_is_dialled_from_the_internet_is_reached(
    networks: Networks, monkeypatch: pytest.MonkeyPatch, public: bool
) -> None:
    monkeypatch.setattr(libp2p_network, "is_global", lambda host: public and bool(host))
    async with networks() as a, networks() as b:
        assert not a.is_outside
        await b.connect(a.addresses[0])
        await is_up(a, b)
        assert (a.reached, a.is_outside, b.is_outside) == (public, public, public)
        assert not b.reached, "it has dialled"
        a._admitted(b.direct(a.peer_id))
        assert a.reached is public


async def test_the_machines_of_proven_peers_are_known(
    networks: Networks, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = list[object]()
    async with networks() as a, networks() as b:
        await b.connect(a.addresses[0])
        await is_up(a, b)
        monkeypatch.setattr(a._host.limiter, "trust", lambda *said: told.append(said[:3]))
        a.trust({b.peer_id, PeerId("gone")}, 3)
        a.trust(None, 3)
    assert told == [({b.peer_id, PeerId("gone")}, 3, ["127.0.0.1"]), (None, 3, [])]
