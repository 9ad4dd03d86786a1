"""What peers say about punching on real sockets: hostile words lead to no dial."""

from contextlib import suppress

import pytest

from client.net.relay.exchange import FAILURES, ask
from protocol.hosts import Outer
from protocol.relay.messages import Punch, PunchRefused
from tests.support.arrivals import until
from tests.support.circuits import asked, circuit, linked, reserve
from tests.support.loopback import Networks

OWN = Outer(40_000, "11.0.1.2", 40_000)
VICTIM = Punch("11.0.9.9", 40_000)


async def test_a_third_partys_place_is_not_dialled(networks: Networks) -> None:
    async with circuit(networks) as (a, b, _):
        assert await asked(a, b, VICTIM) == PunchRefused("unmapped")
        b.seen_at([], [OWN])
        assert await asked(a, b, VICTIM) == PunchRefused("elsewhere")
        assert b.punching.refused["missed"] == 0
        assert a.statistics().punched == b.statistics().punched == ()


async def test_an_attempt_begins_as_soon_as_a_port_of_ours_is_known(networks: Networks) -> None:
    async with circuit(networks) as (a, _, _):
        a.seen_at([], [OWN])
        await until(lambda: a.punching.refused)
        assert set(a.punching.refused) == {"the other side refuses: unmapped"}


async def test_one_who_is_being_dialled_is_not_punched(networks: Networks) -> None:
    async with circuit(networks) as (a, b, _):
        b.seen_at([], [OWN])
        async with b.dialling(a.peer_id):
            assert await asked(a, b, VICTIM) == PunchRefused("busy")
        assert b.punching.refused["busy"] == 1


async def test_to_punch_who_is_linked_directly_is_a_broken_rule(networks: Networks) -> None:
    async with networks() as a, networks() as b:
        await a.connect(b.addresses[0])
        await until(lambda: b.direct(a.peer_id))
        connection = a.direct(b.peer_id)
        assert connection is not None
        with suppress(*FAILURES):
            await ask(connection, VICTIM)
        await until(lambda: b.statistics().refused.get("punch-unasked"))
        assert b.statistics().punched == ()


async def test_who_was_no_member_when_it_dialled_asks_again_where_the_other_end_is(
    networks: Networks, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with networks() as a, networks() as b, networks() as relay:
        await reserve(b, relay)
        monkeypatch.setattr(relay, "is_member", lambda peer: peer == b.peer_id)
        await a.connect(b.reaching.addresses[0])
        await until(lambda: linked(b, a))
        connection = a._links[b.peer_id].connection
        assert connection is not None
        for member, host in ((False, ""), (True, "127.0.0.1")):
            monkeypatch.setattr(relay, "is_member", lambda peer, known=member: known)
            await a.punching._ask_relay(connection)
            assert connection.host_by_relay == host
