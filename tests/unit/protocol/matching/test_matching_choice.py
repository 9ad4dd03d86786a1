"""Prefix cover: the properties that make deferred acceptance stable and order-independent."""

from hypothesis import given
from hypothesis import strategies as st

from protocol.matching.pool import HeldPlace, prefix_cover
from tests.support.matching_examples import peer

quotas = st.integers(0, 60)
floors = st.integers(0, 4)


@st.composite
def proposers(draw: st.DrawFn) -> list[HeldPlace]:
    count = draw(st.integers(0, 9))
    return [
        HeldPlace(
            peer(number),
            draw(st.integers(1, 20)),
            draw(st.integers(0, 5)),
            draw(st.booleans()) and draw(st.booleans()),
            0.0,
        )
        for number in range(count)
    ]


@given(proposers(), quotas, floors, st.data())
def test_substitutes(pool: list[HeldPlace], quota: int, floor: int, data: st.DataObject) -> None:
    """A proposer kept among many is kept among fewer."""
    kept, _ = prefix_cover(pool, quota, floor)
    fewer = [p for p in pool if data.draw(st.booleans())]
    again, _ = prefix_cover(fewer, quota, floor)
    assert {p for p in kept if p in fewer} <= set(again)


@given(proposers(), quotas, floors, st.data())
def test_irrelevance_of_rejected_contracts(
    pool: list[HeldPlace], quota: int, floor: int, data: st.DataObject
) -> None:
    kept, let_go = prefix_cover(pool, quota, floor)
    some = [p for p in let_go if data.draw(st.booleans())]
    assert prefix_cover([*kept, *some], quota, floor)[0] == kept


@given(proposers(), quotas, floors)
def test_overshoot_is_less_than_one_member(pool: list[HeldPlace], quota: int, floor: int) -> None:
    kept, _ = prefix_cover(pool, quota, floor)
    if kept and not kept[-1].locked:
        level = sum(p.rate for p in kept[:-1])
        assert level < quota or len(kept) - 1 < floor


@given(proposers(), quotas, floors, st.randoms())
def test_order_of_arrival_does_not_matter(
    pool: list[HeldPlace], quota: int, floor: int, dice: object
) -> None:
    shuffled = list(pool)
    dice.shuffle(shuffled)  # type: ignore[attr-defined]
    assert prefix_cover(shuffled, quota, floor) == prefix_cover(pool, quota, floor)


@given(proposers(), quotas, floors)
def test_nobody_is_let_go_while_the_quota_is_open(
    pool: list[HeldPlace], quota: int, floor: int
) -> None:
    kept, let_go = prefix_cover(pool, quota, floor)
    if let_go:
        assert sum(proposer.rate for proposer in kept) >= quota
        assert len(kept) >= floor
        assert not any(p.locked for p in let_go)
