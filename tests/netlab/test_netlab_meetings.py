"""One meeting of homes behind routers for each way in which they meet."""

from __future__ import annotations

import pytest

from tests.netlab.internet import why_not
from tests.netlab.meetings import Meeting, Way, World, meet
from tests.netlab.routers import Router
from tests.support.cases import usual

reason = why_not(port_mapper=True)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(reason is not None, reason=f"no laboratory here: {reason}"),
]


@pytest.mark.parametrize(
    ("world", "way"), usual(1, [("v6", "punched"), ("v4", "relayed"), ("mapped", "dialled")])
)
def test_homes_behind_the_worst_routers_meet_in_the_expected_way(world: World, way: Way) -> None:
    assert meet(world, Router.PORT_RESTRICTED, Router.SYMMETRIC, 80.0) == Meeting(way, [])


@pytest.mark.long
@pytest.mark.parametrize("lets_in", [Router.FULL_CONE, Router.ADDRESS_RESTRICTED])
def test_a_home_that_shows_other_ports_dials_one_that_lets_it_in(lets_in: Router) -> None:
    assert meet("v4", Router.SYMMETRIC, lets_in, 80.0) == Meeting("punched", [])
