"""A port stays mapped as long as it is wanted: renewed, replaced, given back."""

from itertools import pairwise

import pytest
import trio
from trio.testing import MockClock

from client.net import gateway
from client.net.gateway import Mapped, MappingRefused, Way
from client.net.port_mapper import LEASE_S, LEAST_LEASE_S, LOOK_S, MOST_RETRY_S, PortMapper
from protocol.pace import ASIDE_S

OURS, OTHERS = 4001, (20_001, 20_002)


class Router:
    """Stands for ``gateway``, and keeps what it is asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at, self.host = "192.168.0.1", "203.0.113.7"
        self.maps, self.takes_s, self.ends_s, self.lease_s = True, 0.0, 0.0, float(LEASE_S)
        self.taken: tuple[int, ...] = ()
        self.asked: list[tuple[float, int]] = []
        self.interrupted = 0
        self.ended: list[tuple[int, int]] = []
        self.told: list[int | None] = []
        self.wanted: int | None = OURS
        monkeypatch.setattr(gateway, "routers", lambda: (self.at, None))
        monkeypatch.setattr(gateway, "ask", self._ask)
        monkeypatch.setattr(gateway, "end", self._end)
        self.mapper = PortMapper("upnp", lambda: self.wanted, OTHERS, self._tell)

    @property
    def times(self) -> list[float]:
        return [at for at, _ in self.asked]

    def _tell(self, mapped: Mapped | None) -> None:
        self.told.append(mapped and mapped.port)

    async def _ask(self, way: Way, own_port: int, outer_port: int, lease_s: int) -> Mapped:
        assert (way, lease_s) == ("upnp", LEASE_S)
        self.asked.append((trio.current_time(), outer_port))
        try:
            await trio.sleep(self.takes_s)
        except trio.Cancelled:
            self.interrupted += 1
            raise
        if outer_port in self.taken:
            raise MappingRefused("somebody else's", conflict=True)
        if not self.maps:
            raise MappingRefused("no")
        return Mapped(self.host, outer_port, self.lease_s)

    async def _end(self, way: Way, own_port: int, outer_port: int) -> None:
        await trio.sleep(self.ends_s)
        self.ended.append((own_port, outer_port))


@pytest.fixture
def router(monkeypatch: pytest.MonkeyPatch) -> Router:
    return Router(monkeypatch)


async def test_a_port_is_mapped_while_it_is_wanted_and_given_back(
    router: Router, autojump_clock: MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(router.mapper.run)
        await trio.sleep(LOOK_S + 1.0)
        router.wanted = None
        await trio.sleep(LOOK_S)
        assert (router.told, router.ended) == ([OURS, None], [(OURS, OURS)])
        router.wanted = 4009
        await trio.sleep(LOOK_S)
        router.wanted = 4010
        await trio.sleep(LOOK_S)
        nursery.cancel_scope.cancel()
    assert router.told == [OURS, None, 4009, None, 4010]
    assert router.ended == [(port, port) for port in (OURS, 4009, 4010)]


async def test_what_is_wanted_no_more_before_it_was_asked_for_is_not_asked_for(
    router: Router, autojump_clock: MockClock
) -> None:
    wanted = iter([OURS])
    mapper = PortMapper("upnp", lambda: next(wanted, None), OTHERS, router._tell)
    router.takes_s = 3600.0
    with trio.move_on_after(LOOK_S):
        await mapper.run()
    assert (router.asked, trio.current_time()) == ([], LOOK_S)


@pytest.mark.parametrize(("ends_s", "given_back"), [(5.0, True), (3600.0, False)])
async def test_a_router_that_is_slow_to_take_it_back_is_waited_for_but_not_for_ever(
    router: Router, autojump_clock: MockClock, ends_s: float, given_back: bool
) -> None:
    router.ends_s = ends_s
    with trio.move_on_after(1.0):
        await router.mapper.run()
    assert router.ended == [(OURS, OURS)] * given_back
    assert trio.current_time() < 10.0


@pytest.mark.parametrize("granted_s", [600.0, 0.0])
async def test_it_is_renewed_after_half_of_what_was_granted_and_not_all_the_time(
    router: Router, autojump_clock: MockClock, granted_s: float
) -> None:
    router.lease_s, half_s = granted_s, max(granted_s, LEAST_LEASE_S) / 2
    with trio.move_on_after(3.5 * half_s):
        await router.mapper.run()
    assert (router.times, router.told) == ([number * half_s for number in range(4)], [OURS])


async def test_a_renewal_that_fails_is_repeated_until_the_lease_ends(
    router: Router, autojump_clock: MockClock
) -> None:
    router.lease_s = 600.0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(router.mapper.run)
        await trio.sleep(1.0)
        router.maps = False
        await trio.sleep(598.0)
        assert router.told == [OURS]
        await trio.sleep(2.0)
        assert router.told == [OURS, None]
        nursery.cancel_scope.cancel()
    assert router.times == [0.0, *(300.0 + ASIDE_S * number for number in range(6))]
    assert not router.ended, "it holds nothing any more"


async def test_while_nothing_maps_it_is_tried_more_and_more_rarely(
    router: Router, autojump_clock: MockClock
) -> None:
    router.maps = False
    with trio.move_on_after(6 * MOST_RETRY_S):
        await router.mapper.run()
    pauses = [later - earlier for earlier, later in pairwise(router.times)]
    assert pauses[0] == ASIDE_S
    assert pauses == sorted(pauses)
    assert pauses[-1] == MOST_RETRY_S
    assert not router.told


async def test_of_what_the_router_may_have_forgotten_it_is_asked_at_once(
    router: Router, autojump_clock: MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(router.mapper.run)
        await trio.sleep(LOOK_S + 1.0)
        router.maps = False
        router.mapper.renew()
        await trio.sleep(1.0)
        assert router.told == [OURS], "it may hold it still"
        router.maps, router.host = True, "203.0.113.8"
        router.mapper.renew()
        await trio.sleep(100.0)
        assert router.times == [0.0, LOOK_S + 1.0, LOOK_S + 2.0]
        assert router.told == [OURS, OURS], "at another address"
        nursery.cancel_scope.cancel()


async def test_another_router_is_asked_anew_and_the_answer_of_the_last_one_not_awaited(
    router: Router, autojump_clock: MockClock
) -> None:
    router.takes_s = 20.0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(router.mapper.run)
        await trio.sleep(LOOK_S + 1.0)
        router.at = "10.0.0.1"
        await trio.sleep(LOOK_S)
        assert (len(router.asked), router.interrupted, router.told) == (2, 1, [])
        await trio.sleep(20.0)
        assert router.told == [OURS]
        router.at = "172.16.0.1"
        await trio.sleep(LOOK_S)
        assert router.told == [OURS, None], "that mapping was of another network"
        await trio.sleep(20.0)
        assert router.told == [OURS, None, OURS]
        assert not router.ended
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("ends", [False, True])
async def test_what_the_router_maps_though_it_is_not_wanted_any_more_is_given_back(
    router: Router, autojump_clock: MockClock, ends: bool
) -> None:
    router.takes_s = LOOK_S + 2.0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(router.mapper.run)
        await trio.sleep(LOOK_S - 1.0)
        router.wanted = None
        if ends:
            nursery.cancel_scope.cancel()
        else:
            await trio.sleep(2 * LOOK_S)
            assert router.told == [OURS, None]
            nursery.cancel_scope.cancel()
    assert (router.interrupted, router.ended[0]) == (0, (OURS, OURS))
    assert trio.current_time() < 20.0


async def test_for_a_port_that_is_somebody_elses_another_is_asked_at_once(
    router: Router, autojump_clock: MockClock
) -> None:
    router.taken = (OURS, OTHERS[0])
    with trio.move_on_after(LEASE_S / 2 + 1.0):
        await router.mapper.run()
    wished = [port for _, port in router.asked]
    assert wished == [OURS, *OTHERS, OTHERS[1]], "that one is renewed"
    assert (router.told, router.ended) == ([OTHERS[1]], [(OURS, OTHERS[1])])


async def test_where_all_ports_are_somebody_elses_it_is_tried_again_later(
    router: Router, autojump_clock: MockClock
) -> None:
    router.taken = (OURS, *OTHERS)
    with trio.move_on_after(ASIDE_S + 1.0):
        await router.mapper.run()
    assert router.times == [0.0] * 3 + [ASIDE_S] * 3
    assert not router.told
