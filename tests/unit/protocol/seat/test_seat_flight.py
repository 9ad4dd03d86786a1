"""The number of microbatches that fill the pipeline both ways, found in a simulated one.

The way: seconds that one takes alone, and a narrowest place that lets one pass per ``tau`` seconds.
"""

import heapq

import pytest

from protocol.seat.leasing import Flight

FLOOR = 4


def step(
    flight: Flight, way_s: float, tau_s: float, start: float, per_step: int = 400
) -> tuple[float, int]:
    """One step of a replica that keeps ``depth()`` in flight; when it ended and the most."""
    flight.start_step()
    waiting, held, done = list(range(per_step, 0, -1)), set[int](), set[int]()
    ends: list[tuple[float, int]] = []
    now, free, most = start, start, 0
    while waiting or ends:
        while waiting and len(held) < max(FLOOR, flight.depth()):
            held.add(waiting[-1])
            free = max(free, now) + tau_s
            heapq.heappush(ends, (free - tau_s + way_s, waiting.pop()))
        most = max(most, len(held))
        flight.observe(held, done, now)
        now, microbatch = heapq.heappop(ends)
        held.discard(microbatch)
        done.add(microbatch)
        flight.observe(held, done, now)
    return now, most


@pytest.mark.parametrize(("way_s", "tau_s"), [(0.2, 0.1), (2.0, 0.4)])
def test_what_has_become_nearer_or_slower_is_noticed(way_s: float, tau_s: float) -> None:
    flight, now = Flight(), 0.0
    for _ in range(3):
        now, before = step(flight, 2.0, 0.1, now)
    for _ in range(5):
        now, after = step(flight, way_s, tau_s, now)
    assert after < before / 2


def test_the_time_to_be_given_work_counts() -> None:
    flight = Flight()
    step(flight, 1.0, 0.1, 0.0)
    before = flight.depth()
    flight.leased(0.4)
    assert flight.depth() == before + 5


def test_what_is_given_away_or_lost_is_no_measure() -> None:
    flight = Flight()
    flight.observe({1}, set(), 0.0)
    flight.observe(set(), set(), 0.5)
    assert flight.depth() == 0


def test_a_new_step_forgets_what_was_in_flight_and_not_what_was_measured() -> None:
    flight = Flight()
    flight.observe({1, 2}, set(), 0.0)
    flight.observe({2}, {1}, 0.5)
    flight.start_step()
    flight.observe(set(), {2}, 9.0)
    assert flight.depth() == 2
