"""What goes over our line: of links that come and go, and whether packets wait at it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from client.net.relay.own_line import SENDS_BYTES, OwnLine
from protocol.relay.lending import Traffic


@dataclass
class Link:
    number: int
    bytes_out: int = 0
    bytes_in: int = 0
    queue_s: float = 0.0

    def carries(self, out: int, in_: int, queue_s: float = 0.0) -> Link:
        self.bytes_out += out
        self.bytes_in += in_
        self.queue_s = queue_s
        return self


def looked(line: OwnLine, *links: Any) -> tuple[Traffic, float]:
    return line.look(links)


def test_what_a_link_carried_before_the_first_look_is_not_counted() -> None:
    line, one, other = OwnLine(), Link(1, 1000, 2000), Link(2)
    assert looked(line, one, other) == (Traffic(0, 0), 0.0)
    assert looked(line, one.carries(10, 20), other.carries(1, 2))[0] == Traffic(11, 22)
    assert looked(line, one.carries(10, 20), Link(3, 500, 500))[0] == Traffic(21, 42)
    assert looked(line, one)[0] == Traffic(21, 42), "what is gone stays counted"
    assert looked(line, one, other.carries(7, 7))[0] == Traffic(21, 42), "it is new again"


def test_packets_wait_as_long_as_on_the_freest_path_that_carries_something() -> None:
    line, busy, full, idle = OwnLine(), Link(1), Link(2), Link(3)
    looked(line, busy, full, idle)
    busy.carries(SENDS_BYTES, 0, 0.25)
    full.carries(2 * SENDS_BYTES, 0, 3.0)
    idle.carries(SENDS_BYTES - 1, 10**9, 0.01)
    assert looked(line, busy, full, idle)[1] == 0.25
    assert looked(line, busy, full, idle)[1] == 0.0, "nothing is sent any more"
