"""The limit on computing time: rests in proportion, and never longer than the share asks for."""

from __future__ import annotations

import pytest

from client.compute.allowance import Throttle


class Clock:
    """Processor time and wall time that the test moves; sleeping moves the wall alone."""

    def __init__(self) -> None:
        self.wall = self.busy = 100.0

    def work(self, busy_s: float, waiting_s: float = 0.0) -> None:
        self.busy += busy_s
        self.wall += busy_s + waiting_s

    def sleep(self, seconds: float) -> None:
        self.wall += seconds

    def throttle(self, share: int, *, on_cpu: bool = True) -> Throttle:
        return Throttle(
            share,
            on_cpu=on_cpu,
            wall=lambda: self.wall,
            busy=lambda: self.busy,
            sleep=self.sleep,
        )


@pytest.mark.parametrize(
    ("share", "busy_s", "waiting_s", "takes_s"),
    [
        (100, 2.0, 0.0, 2.0),
        (50, 2.0, 0.0, 4.0),
        (25, 2.0, 0.0, 8.0),
        (25, 2.0, 3.0, 8.0),  # the machine was busy: it rested already
        (25, 2.0, 9.0, 11.0),
        (100, 2.0, 1.0, 3.0),
    ],
)
def test_a_task_takes_as_long_as_its_share_allows(
    share: int, busy_s: float, waiting_s: float, takes_s: float
) -> None:
    clock = Clock()
    throttle = clock.throttle(share)
    begin = throttle.begin()
    clock.work(busy_s, waiting_s)
    throttle.rest(begin)
    assert clock.wall == pytest.approx(100.0 + takes_s)


def test_with_an_accelerator_all_the_time_of_a_task_counts() -> None:
    clock = Clock()
    throttle = clock.throttle(50, on_cpu=False)
    begin = throttle.begin()
    clock.work(0.1, waiting_s=0.9)
    throttle.rest(begin)
    assert clock.wall == pytest.approx(102.0)
