"""Choosing the next hop: shares follow speed, failures cost their own peer only."""

import math
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.ids import PeerId, peer_id_from_key
from protocol.pace import FORGET_S, LOOK_S
from protocol.pipeline.effects import ForwardTask, Outcome, SendPayload
from protocol.pipeline.next_hop import RELAYED_MORE, SELDOM, NextHop
from protocol.pipeline.pipeline import Pipeline
from protocol.pipeline.place import Place
from tests.support.seats import view_of

PEERS = [peer_id_from_key(bytes([n]) * 32) for n in range(6)]
A, B, C = PEERS[:3]


def taught(hop_s: dict[PeerId, float]) -> NextHop:
    """Accounts that have learned how long each replica takes."""
    hops = NextHop()
    hops.update(dict.fromkeys(hop_s, 0.0))
    for peer, seconds in hop_s.items():
        for _ in range(200):
            hops.accounts[peer].settle(seconds, 1, 0.0)
    return hops


def choices(hops: NextHop, count: int) -> Counter[PeerId]:
    """The targets of microbatches, none of which comes back."""
    chosen = (hops.choose(0.0) for _ in range(count))
    return Counter(choice for choice in chosen if choice)


@given(st.lists(st.floats(0.05, 5.0), min_size=2, max_size=5))
def test_shares_follow_speed(seconds: list[float]) -> None:
    hop_s = dict(zip(PEERS, seconds, strict=False))
    counts = choices(taught(hop_s), 400)
    total_rate = sum(1 / s for s in hop_s.values())
    for peer, s in hop_s.items():
        assert abs(counts[peer] - 400 / s / total_rate) <= len(hop_s)


def test_a_newcomer_gets_until_it_has_as_much_as_the_others() -> None:
    hops = taught({A: 1.0, B: 1.0})
    choices(hops, 20)
    hops.update({A: 0.0, B: 0.0, C: 0.0})
    counts = choices(hops, 40)
    assert counts == {A: 10, B: 10, C: 20}


def test_a_pipeline_knows_from_its_view_who_is_relayed() -> None:
    me, ids = PEERS[5], iter(range(8))
    made = Pipeline(Place(me, 0, 2, 8), 0)
    for relayed, other in ((A, B), (B, A)):
        seen = replace(view_of(0, [me], [A, B]), relayed=frozenset({relayed}))
        made.update_view(seen, 0.0)
        for _ in range(int(RELAYED_MORE)):
            microbatch = next(ids)
            made.lease([microbatch], again=False, now=0.0)
            effects = made.computed(ForwardTask(0, microbatch), Outcome(), 0.0)
            assert [effect.peer for effect in effects if isinstance(effect, SendPayload)] == [other]


def test_rates_decide_once_everybody_has_said_one() -> None:
    """The time to the gradient is much the same for all: the stages behind take most of it."""
    hops = taught({A: 3.0, B: 3.1})
    assert set(choices(hops, 20).values()) == {10}
    hops = taught({A: 3.0, B: 3.1})
    hops.update({A: 8.0, B: 2.0})
    assert choices(hops, 20) == {A: 16, B: 4}
    hops = taught({A: 3.0, B: 3.1, C: 3.1})
    hops.update({A: 8.0, B: 2.0, C: 0.0})
    assert max(choices(hops, 30).values()) == 10


def test_spare_is_who_has_nothing_or_brings_something() -> None:
    hops = NextHop()
    hops.update({A: 0.0, B: 0.0, C: 0.0})
    hops.accounts[A].charged += 1
    hops.accounts[B].charged += 1
    hops.accounts[B].brought(5.0)
    assert hops.spare(4.0, 9.0) == {B, C}
    assert hops.spare(6.0, 9.0) == {C}
    hops.accounts[C].struck(9.0)
    assert hops.spare(4.0, 9.0 + FORGET_S) == {B}, "it has brought nothing since"


@pytest.mark.parametrize("said", [False, True])
@pytest.mark.parametrize("now_s", [0.1, 5.0])
def test_who_was_slow_at_first_is_tried_again_and_then_measured_anew(
    said: bool, now_s: float
) -> None:
    """By what it needed when its worker began it would get nothing of a small step for ever."""
    hops = taught({A: 0.1})
    hops.update({A: 10.0, B: 0.2} if said else {A: 0.0, B: 0.0})
    hops.accounts[B].settle(5.0, 1, 1.0)
    again = 1.0 + SELDOM * 5.0

    def step(now: float) -> Counter[PeerId]:
        chosen = [peer for _ in range(3) if (peer := hops.choose(now))]
        for peer in chosen:
            hops.accounts[peer].release()
            hops.accounts[peer].settle(0.1 if peer == A else now_s, 1, now)
        return Counter(chosen)

    assert step(again) == {A: 3}
    assert step(again + 0.1) == {A: 2, B: 1}, "one tries it"
    hops.update({A: 10.0, B: 1 / now_s} if said else {A: 0.0, B: 0.0})
    assert (B in step(again + 0.2)) == (now_s < 1)


def test_who_needs_little_is_tried_after_a_while() -> None:
    hops = taught({A: 0.1, B: 0.4})
    assert not hops.accounts[B].is_stale(FORGET_S)
    assert hops.accounts[B].is_stale(FORGET_S + 0.1)


def test_a_boast_gets_a_few_times_the_usual() -> None:
    hops = NextHop()
    hops.update({A: 1e30, B: 1.0, C: 1.0})
    assert choices(hops, 60) == {A: 40, B: 10, C: 10}


@pytest.mark.parametrize("rate", [5e-324, 1e-30, 1e30])
def test_an_absurd_rate_spoils_no_account(rate: float) -> None:
    hops = NextHop()
    hops.update({A: rate, B: 1.0})
    for _ in range(50):
        choice = hops.choose(0.0, exclude={B})
        hops.accounts[choice].release()
    hops.update({A: 1.0, B: 1.0})
    assert choices(hops, 4) == {A: 2, B: 2}


def test_who_leaves_gets_nothing_while_somebody_stays() -> None:
    hops = taught({A: 1.0, B: 9.0})
    hops.leaving = {A}
    assert choices(hops, 5) == {B: 5}
    assert A not in hops.spare(math.inf, 0.0)
    hops.leaving = {A, B}
    assert choices(hops, 5)[A] > 0, "where all leave together they still take the step whole"
    hops.leaving = set()
    assert choices(hops, 5)[A] > 0


def test_who_is_struck_gets_nothing_for_a_while() -> None:
    hops = taught({A: 1.0, B: 1.0})
    hops.accounts[A].struck(10.0)
    hops.accounts[A].struck(30.0)
    assert {hops.choose(39.9) for _ in range(9)} == {B}
    assert hops.choose(39.9, exclude={B}) == A, "where there is no other"
    assert A in {hops.choose(10.0 + FORGET_S) for _ in range(9)}


def test_all_that_rest_are_waited_for() -> None:
    hops = taught({A: 1.0, B: 1.0})
    hops.accounts[A].refused(1.0)
    hops.accounts[B].refused(1.1)
    assert hops.choose(1.0 + LOOK_S - 0.1) is None
    assert hops.choose(1.0 + LOOK_S) == A
