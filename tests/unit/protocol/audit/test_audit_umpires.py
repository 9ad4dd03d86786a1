"""Umpires: the majority of a stage of two, and how many cases an umpire takes."""

from __future__ import annotations

import pytest

from protocol.audit.charges import CHARGE, KIND, Charge, Charges
from protocol.audit.umpires import AT_ONCE, AT_ONCE_EACH, MAX_KNOWN, Allowance
from protocol.wire.envelope import sign
from tests.support.protocol_examples import SWARM, peer, signer

STAGE, LIAR = 1, 9


def verdict(authors: list[int], members: list[int], beside: list[int]) -> set[str]:
    charges = Charges(SWARM)
    for author in authors:
        body = CHARGE.encode(Charge(STAGE, peer(LIAR), 7, 1, b"r" * 32, "lies"))
        charges.take(sign(signer(author), KIND, body, SWARM), 0.0)
    there, umpires = [peer(n) for n in members], [peer(n) for n in beside]
    found = charges.verdict(STAGE, peer(LIAR), lambda _: there, 1.0, lambda _: umpires)
    return {one.signer for one in found}


@pytest.mark.parametrize(
    ("authors", "members", "beside", "out"),
    [
        ([1, 3, 4], [1, 9], [3, 4], True),  # 2 x 2: three of four
        ([1, 3], [1, 9], [3, 4], False),  # one liar with an accomplice
        ([1], [1, 9], [3, 4], False),
        ([3, 4], [1, 9], [3, 4], False),
        ([3, 4], [9], [3, 4], False),  # not without one of the stage
        ([1, 3, 4], [1, 9], [3, 4, 5, 6], False),
        ([1, 3, 4, 5], [1, 9], [3, 4, 5, 6], True),
        ([1], [1, 9], [], False),  # a stage of two without neighbours
        ([1, 3, 4], [1, 2, 9], [3, 4], False),  # three replicas judge alone
        ([1, 2], [1, 2, 9], [3, 4], True),
    ],
)
def test_where_a_stage_has_two_members_those_beside_it_judge_too(authors, members, beside, out):
    assert verdict(authors, members, beside) == ({peer(n) for n in authors} if out else set())


def stands(among: dict[int, int], beside: list[int], known: int) -> bool:
    """Whether charges of a stage of two and its umpires, each with how many judge, expel."""
    charges = Charges(SWARM)
    for author, number in among.items():
        body = CHARGE.encode(Charge(STAGE, peer(LIAR), 7, 1, b"r" * 32, "lies", number))
        charges.take(sign(signer(author), KIND, body, SWARM), 0.0)
    there, umpires = [peer(1), peer(LIAR)], [peer(n) for n in beside]
    return bool(charges.verdict(STAGE, peer(LIAR), lambda _: there, 1.0, lambda _: umpires, known))


@pytest.mark.parametrize(
    ("among", "known", "out"),
    [
        ({1: 3, 3: 3}, 3, True),
        ({1: 3, 3: 4}, 4, False),  # the accuser's last plan lacks an umpire whom the other sees
        ({1: 3, 3: 4, 4: 4}, 4, True),
        ({1: 4, 3: 4, 4: 64}, 4, True),  # nobody is kept in by a number that was made up
        ({1: 0, 3: 0}, 3, True),
    ],
)
def test_the_largest_panel_that_a_judge_knows_is_the_one(among, known, out):
    """One that expelled by a smaller one went on alone, and the others with the liar."""
    assert stands(among, [3, 4] if 4 in among else [3], known) is out


def test_a_case_is_taken_once() -> None:
    allowance = Allowance(0.1)
    assert allowance.takes(peer(1), "a")
    assert not allowance.takes(peer(1), "a")


def test_who_charges_without_end_costs_a_bounded_share() -> None:
    allowance = Allowance(0.03)
    taken = 0
    for step in range(1000):
        allowance.closed()
        taken += sum(allowance.takes(peer(1), (step, n)) for n in range(3))
    assert AT_ONCE_EACH + 25 <= taken <= AT_ONCE_EACH + 30


def test_one_author_leaves_something_to_others_and_many_do_not_cost_more() -> None:
    allowance = Allowance(0.03)
    assert sum(allowance.takes(peer(1), n) for n in range(9)) == AT_ONCE_EACH
    assert sum(allowance.takes(peer(2), n + 9) for n in range(9)) == AT_ONCE - AT_ONCE_EACH
    taken = 0
    for step in range(1000):
        allowance.closed()
        taken += sum(allowance.takes(peer(n), (step, n)) for n in range(3, 40))
    assert taken <= 30


def test_what_it_remembers_is_bounded() -> None:
    allowance = Allowance(1.0)
    for n in range(4 * MAX_KNOWN):
        allowance.closed()
        allowance.takes(peer(n % 200 + 1), n)
    assert len(allowance._taken) <= MAX_KNOWN
    assert len(allowance._of) <= MAX_KNOWN
