"""The driver of reachability: whom it tells, whom it asks, and what the owner reads."""

import pytest
import trio

from client.net.gateway import Mapped
from client.train.swarm import reach as reach_module
from client.train.swarm.reach import LOOK_S, Reach
from protocol.address import Address, parse_address
from protocol.hosts import Outer
from protocol.ids import PeerId
from protocol.reachability.budgets import MESSAGES
from protocol.reachability.machine import Candidate, Ends, Source, Verdict
from tests.support.recording_ports import RecordingPorts

ME, PORT, US = PeerId("me"), 4001, "11.0.0.2"
HOME = "192.168.1.2"


class World(RecordingPorts):
    """A driver whose links and engine are the test."""

    def __init__(self) -> None:
        super().__init__(ME)
        self.peer_id, self.time = ME, None
        self.listening = [Address("ip4", "0.0.0.0", PORT)]
        self.links: dict[PeerId, Ends] = {}
        self.asked: list[tuple[PeerId, int]] = []
        self.reached: bool | None = None
        """What probers answer."""
        self.outer: list[str] = []
        self.homes = [HOME]
        self.reach: Reach

    def meet(self, number: int, host: str | None = None) -> PeerId:
        """A link to a member of another network, dialled by us."""
        peer = PeerId(f"p{number}")
        self.links[peer] = Ends(host or f"11.0.{number + 1}.2", 40_000, dialled=True, port=PORT)
        return peer

    # --- the network ----------------------------------------------------------------------------

    def ends(self, peer: PeerId) -> Ends | None:
        return self.links.get(peer)

    def seen_at(self, hosts: list[str], outers: list[Outer]) -> None:
        self.outer = hosts

    async def probe(self, peer: PeerId, port: int) -> bool | None:
        self.asked.append((peer, port))
        await trio.lowlevel.checkpoint()
        return self.reached


@pytest.fixture
async def made(monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery) -> World:
    made = World()
    monkeypatch.setattr(reach_module, "reachable_hosts", lambda host: made.homes)
    made.reach = Reach(made, made, nursery)  # type: ignore[arg-type]
    nursery.start_soon(made.reach.run)
    await trio.testing.wait_all_tasks_blocked()
    return made


async def _answered(made: World, peers: list[PeerId], reached: bool) -> None:
    made.reached = reached
    for peer in peers:
        made.reach.observed(peer, (US, 50_000))
    await trio.testing.wait_all_tasks_blocked()


async def test_a_peer_is_seen_where_other_networks_see_it_too(made: World) -> None:
    assert made.reach.sees(made.meet(1)) == ("11.0.2.2", PORT)
    for host in (HOME, "2a11:9::1%eth0"):
        assert made.reach.sees(made.meet(2, host)) is None
    assert made.reach.sees(PeerId("behind a relay")) is None


async def test_what_was_reached_is_advertised_first(made: World) -> None:
    own = [f"/ip4/{HOME}/tcp/{PORT}/p2p/{ME}", "/some/other/grammar"]
    assert made.reach.advertised(own) == own
    peers = [made.meet(number) for number in range(3)]
    await _answered(made, peers, reached=True)
    assert made.reach.advertised(own) == [f"/ip4/{US}/tcp/{PORT}/p2p/{ME}", *own]
    assert made.reach.summary().state == "reachable"
    assert made.reach.reachable
    assert not made.reach.summary().next_step
    assert made.outer == [US]
    for peer in peers:
        made.reach.gone(peer)
    assert not made.outer, "nobody is left who sees us there"
    assert [effect.level for effect in made.told()] == ["info"]


async def test_who_is_not_reached_is_told_what_to_do(made: World) -> None:
    assert made.reach.summary().state == "unknown"
    await _answered(made, [made.meet(number) for number in range(3)], reached=False)
    found = made.reach.summary()
    assert found.state == "unreachable"
    assert not made.reach.reachable
    assert f"forward TCP port {PORT} of the router to {HOME}" in found.next_step
    assert made.reach.advertised([]) == []
    made.reach.map("ip4", Mapped("100.64.0.7", PORT, 3600))
    assert "shares one IPv4 address" in made.reach.summary().next_step
    made.reach.map("ip4", Mapped("11.9.9.9", PORT, 3600))
    assert "shares one IPv4 address" in made.reach.summary().next_step


async def test_an_announced_address_that_nobody_reaches_is_a_warning(made: World) -> None:
    made.reach.announced = [Address("ip4", US, 9000)]
    made.reach.map("ip4", None)
    peers = [made.meet(number) for number in range(3)]
    await _answered(made, peers, reached=False)
    warned = made.warnings()
    assert len(warned) == 1
    assert "port 9000, which it announces" in warned[0]


async def test_an_address_announced_later_is_probed_at_the_next_look(made: World) -> None:
    made.reach.announced = [Address("ip4", US, 9000)]
    for number in range(3):
        made.reach.observed(made.meet(number), (US, 50_000))
    await trio.sleep(LOOK_S + 1.0)
    assert 9000 in {port for _, port in made.asked}


async def test_a_mapping_is_wanted_behind_a_router_only(made: World) -> None:
    assert made.reach.wants_mapping() == PORT
    made.homes = [HOME, US]
    assert made.reach.wants_mapping() is made.reach.wants_pinhole() is None
    made.listening = [Address("ip4", "127.0.0.1", PORT)]
    made.homes = ["127.0.0.1"]
    assert made.reach.wants_mapping() is None
    assert made.reach.summary().state == "local"
    made.listening = [Address("ip6", "::", PORT)]
    made.homes = ["2a11::1"]
    assert made.reach.wants_mapping() is None
    assert made.reach.wants_pinhole() == PORT
    made.homes = ["fd12:3456:789a:1::1"]
    assert made.reach.wants_pinhole() is None, "nobody outside could use it"


async def test_who_floods_is_blamed_and_costs_no_more(made: World) -> None:
    liar, honest = made.meet(0), made.meet(1)
    for _ in range(1000):
        made.reach.observed(liar, ("11.9.9.9", 7))
    await trio.testing.wait_all_tasks_blocked()
    assert {*made.blamed()} == {liar}
    assert len(made.blamed()) == 1000 - MESSAGES.burst
    assert len(made.asked) <= MESSAGES.burst
    made.reach.observed(honest, (US, 7))
    assert made.reach.machine.outer_hosts()[-1] == US


def standing(verdict: Verdict, probers: int, source: Source = "seen", host: str = US) -> Candidate:
    return Candidate((host, PORT), source, 0.0, 0.0, verdict, probers)


async def test_a_port_that_the_router_maps_is_said_to_be_mapped(
    made: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = [standing(Verdict.PRIVATE, 2), standing(Verdict.PUBLIC, 2, "mapped")]
    monkeypatch.setattr(made.reach.machine, "candidates", lambda: known)
    assert made.reach.summary().state == "mapped"
    assert made.reach.reachable


async def test_a_machine_without_a_private_address_opens_its_firewall(
    made: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    private = [standing(Verdict.PRIVATE, 2)]
    monkeypatch.setattr(made.reach.machine, "candidates", lambda: private)
    made.homes = [US, "fd00::1"]
    made.reach.renew()
    advice = made.reach.summary().next_step
    assert advice == (f"open TCP port {PORT} in the firewall of this machine and of its router")


async def test_addresses_that_nobody_reached_are_advertised_last(
    made: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = [standing(Verdict.PRIVATE, 2, host=HOME), standing(Verdict.PUBLIC, 2)]
    monkeypatch.setattr(made.reach.machine, "candidates", lambda: known)
    private, other = f"/ip4/{HOME}/tcp/{PORT}", "/ip4/11.7.7.7/tcp/9"
    public = f"/ip4/{US}/tcp/{PORT}/p2p/{ME}"
    assert made.reach.advertised([private, other, public]) == [public, other, private]


async def test_what_a_router_maps_is_said_and_counts_until_it_ends(
    made: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = list[dict[object, str]]()
    monkeypatch.setattr(made.reach.machine, "listens", lambda *all_: given.append(all_[2]))
    made.reach.announced = [Address("ip4", US, 9000)]
    made.reach.map("ip4", Mapped(US, 9000, 3600))
    made.reach.map("ip6", Mapped("2a11::1", PORT, 3600))
    made.reach.map("ip6", None)
    announced = {(US, 9000): "announced"}
    assert given == [announced, announced | {("2a11::1", PORT): "mapped"}, announced]
    assert [effect.words for effect in made.told()] == [
        f"the router passes {host} port {port} on to this volunteer, as it was asked to"
        for host, port in ((US, 9000), ("2a11::1", PORT))
    ]


@pytest.mark.parametrize("host", ["2a11:9::1%eth0", "::ffff:11.0.0.2"])
async def test_a_host_that_no_address_can_have_is_never_advertised(made: World, host: str) -> None:
    """Our own advert would be refused, by ourselves first."""
    made.listening.append(Address("ip6", "::", PORT))
    made.homes = ["fd00::1"]
    made.reach.renew()
    liars = [made.meet(number, host=f"2a11:{number}::2") for number in range(1, 4)]
    made.reached = True
    for peer in liars:
        made.reach.observed(peer, (host, PORT))
    await trio.testing.wait_all_tasks_blocked()
    for text in made.reach.advertised([]):
        parse_address(text)
