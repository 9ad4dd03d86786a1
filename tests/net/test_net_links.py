"""A link over several connections: which one takes the frames, and when it begins anew."""

from typing import Any
from unittest.mock import Mock

import trio

from client.net.links import CROSSING_S, Link, Outgoing, outgoing
from protocol.ids import PeerId
from protocol.wire.messages import Goodbye

SMALL, LARGE = PeerId("a"), PeerId("b")
MESSAGE = Goodbye("")


def carrier(*, dialled: bool, relay: str | None = None, ready: bool = True) -> Any:
    made = Mock(live=True, ready=ready)
    made.connection = Mock(dialled=dialled, relay=relay, in_doubt=False)
    made.connection.session.closed = False
    made.unsent_bytes.return_value = 5
    return made


def frame() -> Outgoing:
    return outgoing(MESSAGE, b"")


def up(*carriers: Any) -> Link:
    made = Link(SMALL, LARGE, Mock())
    for one in carriers:
        made.attach(one)
    assert made.settle()
    return made


async def test_a_second_dial_the_same_way_gives_the_first_one_up() -> None:
    first, relayed, again = (carrier(dialled=True, relay=r) for r in (None, "r", None))
    made = up(first)
    made.attach(relayed)
    assert not first.connection.close.called
    made.attach(again)
    first.connection.close.assert_called_once()
    assert not relayed.connection.close.called


class TestANewConnection:
    """Does it show that the link is over?"""

    async def test_of_a_link_that_is_not_up(self) -> None:
        made, one = Link(SMALL, LARGE, Mock()), carrier(dialled=True, ready=False)
        assert made.is_over_for(carrier(dialled=False).connection), "it has none"
        made.attach(one)
        assert not made.is_over_for(carrier(dialled=False).connection)

    async def test_of_a_peer_that_does_not_answer(self) -> None:
        one = carrier(dialled=True)
        made = up(one)
        one.connection.in_doubt = True
        assert made.is_over_for(carrier(dialled=False).connection)

    async def test_the_same_way_as_before_the_peer_has_begun_anew(self) -> None:
        made = up(carrier(dialled=False))
        assert made.is_over_for(carrier(dialled=False).connection)
        assert not made.is_over_for(carrier(dialled=True).connection), "our own dial crosses it"

    async def test_the_other_way_it_may_have_crossed(
        self, autojump_clock: trio.testing.MockClock
    ) -> None:
        made, other = up(carrier(dialled=True)), carrier(dialled=False).connection
        assert not made.is_over_for(other)
        await trio.sleep(CROSSING_S + 0.1)
        assert made.is_over_for(other)

    async def test_a_move_from_a_relay_that_was_announced(
        self, autojump_clock: trio.testing.MockClock
    ) -> None:
        made = up(carrier(dialled=True, relay="r"))
        direct, relayed = (carrier(dialled=True, relay=r).connection for r in (None, "r"))
        assert made.is_over_for(direct), "nobody has said so"
        made.moving()
        assert not made.is_over_for(direct)
        assert made.is_over_for(relayed)
        await trio.sleep(CROSSING_S)
        assert made.is_over_for(direct)


async def test_what_waits_is_dropped_with_the_last_connection() -> None:
    one, other = carrier(dialled=True), carrier(dialled=False)
    made = up(one, other)
    made.queues["control"].append(frame())
    assert made.unsent_bytes("control") == sum(map(len, frame())) + 2 * 5
    assert not made.detach(one)
    assert made.connection is None
    assert not made.gone.is_set()
    assert made.detach(other)
    assert made.gone.is_set()
    assert made.unsent_bytes("control") == 0
    assert not made.works
