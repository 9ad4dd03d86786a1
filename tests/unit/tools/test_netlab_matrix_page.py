"""The matrix of routers: what is expected, what is measured again, and what its page says."""

from __future__ import annotations

from tests.netlab.matrix import LETS_IN, WORLDS, Cell, Way, cells, expected, markdown
from tests.netlab.routers import Router


def cell(way: Way, *, rtt_ms: float = 80.0, false: tuple[str, ...] = ()) -> Cell:
    kinds = (Router.SYMMETRIC.value, Router.FULL_CONE.value)
    return Cell("v4", *kinds, rtt_ms, "relayed", way, 0.9, 0.0, list(false))


def test_homes_that_hide_their_ports_from_strict_routers_stay_relayed() -> None:
    relayed = {
        (world, a, b)
        for world, a, b, _ in cells(WORLDS, [80.0])
        if expected(world, a, b) == "relayed"
    }
    strict = [kind for kind in Router if kind not in LETS_IN]
    assert relayed == {("v4", kind, Router.SYMMETRIC) for kind in strict}
    assert len(list(cells(WORLDS, [20.0, 80.0, 200.0]))) == 135


def test_the_page_names_what_is_not_as_it_should_be() -> None:
    good, wrong = cell("relayed"), cell("punched", rtt_ms=20.0)
    false = cell("relayed", rtt_ms=200.0, false=("/ip4/11.0.1.2/tcp/4001",))
    assert good.good
    assert not wrong.good
    assert not false.good
    page = markdown([good, wrong, false], 135)
    assert "**3 of 135 cells measured; 3 linked, 1 in the expected way; 1 with an address" in page
    assert "| v4 | 20 | symmetric x full cone | relayed | punched |" in page
    assert "| relayed; falsely /ip4/11.0.1.2/tcp/4001 |" in page
