"""Our own line, measured by transfers in simulated time."""

import pytest

from client.train.machine.line_meter import LineMeter
from protocol.ids import PeerId
from tests.support.protocol_examples import peer

MIB = 2**20
FAST, SLOW = peer(3), peer(4)


def transfer(
    meter: LineMeter, name: PeerId, rate: float, start: float, seconds: float = 10.0
) -> None:
    """Chunks of 2 MiB, four outstanding, at a steady rate."""
    now, each = start, 2 * MIB / rate
    for _ in range(4):
        meter.begin(name, now)
    while now < start + seconds:
        now += each
        meter.arrived(name, 2 * MIB, now)
        meter.begin(name, now)
    for _ in range(4):
        now += each
        meter.arrived(name, 2 * MIB, now)


@pytest.mark.parametrize("rate", [4 * MIB, 200 * MIB])
def test_waiting_between_transfers_is_no_slowness(rate: float) -> None:
    """On the faster line one chunk is over too soon to be measured."""
    meter = LineMeter()
    for start in (100.0, 1000.0, 5000.0):
        transfer(meter, SLOW, rate, start, seconds=3)
    assert meter.own_bytes_per_s == pytest.approx(rate, rel=0.01)
    assert meter.outstanding(SLOW) == 0


def test_what_came_out_of_a_buffer_is_no_line() -> None:
    meter = LineMeter()
    for n in range(100):
        meter.begin(FAST, float(n))
        meter.arrived(FAST, 64 * MIB, n + 1e-6)
    assert meter.own_best_bytes_per_s == 0


def test_a_peer_that_vanishes_in_a_transfer_leaves_nothing() -> None:
    meter = LineMeter()
    meter.begin(SLOW, 0.0)
    meter.gone(SLOW)
    meter.arrived(SLOW, MIB, 50.0)
    assert meter.own_s == 0
