"""Charges: only a majority of a stage expels, and only what members have signed counts."""

import pytest

from protocol.audit.charges import (
    CHARGE,
    KIND,
    MAX_OF_AUTHOR,
    VERIFIED,
    Charge,
    Charges,
    check,
    words_of,
)
from protocol.errors import RemoteProtocolError
from protocol.pace import LONG_S
from protocol.verdicts import Verdict
from protocol.wire.fields import Envelope
from protocol.wire.parts import VotedOut
from tests.support.protocol_examples import OTHER_SWARM, SWARM, peer, signer

STAGE = 1


def charge(
    author: int, member: int, *, swarm: str = SWARM, kind: str = KIND, **changes
) -> Envelope:
    said = {"step": 7, "attempt": 1, "reason": "lies"} | changes
    body = CHARGE.encode(Charge(STAGE, peer(member), **said))
    return signer(author).sign(kind, body, swarm)


def verdict(authors, member=9, stage_of=range(1, 5), now=100.0):
    charges = Charges(SWARM)
    for number, author in enumerate(authors):
        charges.take(charge(author, member), float(number))
    judges = [peer(n) for n in stage_of]
    found = charges.verdicts(lambda _: judges, now)
    return [e.signer for verdict in found for e in verdict.certificate.charges]


@pytest.mark.parametrize(
    ("judges", "authors", "out"),
    [
        ([1, 9], [1], False),  # two replicas: nobody can decide
        ([1, 2, 9], [1], False),
        ([1, 2, 9], [1, 2], True),
        ([1, 2, 3, 9], [1, 2], False),  # half is no majority
        ([1, 2, 3, 9], [1, 2, 3], True),
        ([1, 2, 3, 4, 9], [1, 2, 3], True),
        ([1, 2, 9], [1, 5, 6, 7], False),  # others may say what they want
        ([1, 2], [1], False),  # the member counts even if it is on no roll
    ],
)
def test_more_than_half_of_a_stage_expels(judges, authors, out):
    found = verdict(authors, stage_of=judges)
    assert bool(found) == out
    assert set(found) <= {peer(n) for n in judges}


def test_of_the_members_of_several_steps_the_most_count():
    charges = Charges(SWARM)
    for author, step in ((1, 7), (2, 8)):
        charges.take(charge(author, 9, step=step), 0.0)
    there = {7: [peer(n) for n in (1, 2, 9)], 8: [peer(n) for n in (1, 2, 3, 4, 9)]}
    assert charges.verdicts(lambda one: there[one.step], 1.0) == []


def test_nobody_charges_twice_or_itself():
    charges = Charges(SWARM)
    assert charges.take(charge(1, 9), 0.0) is not None
    assert charges.take(charge(1, 9), 10.0) is None
    assert charges.take(charge(9, 9), 20.0) is None
    assert charges.take(charge(1, 9, step=8), 30.0) is not None
    assert len(charges.all(30.0)) == 1, "the newest stands"


def test_an_author_is_verified_once_a_second_in_the_long_run():
    """Who finds out several in one step charges all of them at once."""
    charges = Charges(SWARM)
    for member in range(2, 2 + int(VERIFIED.burst)):
        assert charges.take(charge(1, member), 0.0) is not None
    assert charges.take(charge(1, 99), 0.5) is None
    assert charges.take(charge(1, 99), 1.0) is not None
    assert charges.take(charge(1, 98), 1.5) is None
    assert charges.take(charge(2, 98), 1.5) is not None, "of each author by itself"


def test_who_charges_members_without_number_displaces_no_charges_but_its_own():
    charges = Charges(SWARM)
    charges.take(charge(1, 9), 0.0)
    for number in range(MAX_OF_AUTHOR + 1):
        charges.take(charge(2, 100 + number), 1.0 + number)
    kept = [(one.envelope.signer, one.charge.member) for one in charges.all(0.0)]
    assert kept == [(peer(1), peer(9)), *((peer(2), peer(101 + n)) for n in range(MAX_OF_AUTHOR))]


def test_charges_are_forgotten():
    assert verdict([1, 2], stage_of=[1, 2, 9], now=LONG_S - 1)
    assert not verdict([1, 2], stage_of=[1, 2, 9], now=LONG_S + 2)


@pytest.mark.parametrize(
    "forged",
    [
        charge(1, 9, swarm=OTHER_SWARM),
        Envelope(peer(2), KIND, charge(1, 9).body, charge(1, 9).signature),
        Envelope(peer(1), KIND, charge(1, 9).body[:-1], charge(1, 9).signature),
    ],
)
def test_what_is_not_signed_for_this_swarm_is_refused(forged):
    charges = Charges(SWARM)
    with pytest.raises(RemoteProtocolError):
        charges.take(forged, 0.0)
    assert not charges.all(0.0)


def test_another_kind_of_letter_is_no_charge():
    assert Charges(SWARM).take(charge(1, 9, kind="plan"), 0.0) is None


def test_what_is_kept_of_a_verdict_is_verified_again():
    both = (charge(1, 9), charge(2, 9, reason="other"))
    out = VotedOut(STAGE, peer(9), both)
    words = words_of([CHARGE.parse(one.body) for one in both])
    assert check(out, SWARM) == Verdict(peer(9), words, out, STAGE)
    assert "of stage 1; found by 2 members" in words
    for wrong in (
        VotedOut(STAGE, peer(8), both),
        VotedOut(0, peer(9), both),
        VotedOut(STAGE, peer(9), (both[0], charge(1, 9, step=8))),  # twice the same author
        VotedOut(STAGE, peer(9), (both[0], charge(9, 9))),
        VotedOut(STAGE, peer(9), (both[0], charge(2, 9, swarm=OTHER_SWARM))),
        VotedOut(STAGE, peer(9), (both[0], charge(2, 9, kind="plan"))),
    ):
        with pytest.raises(RemoteProtocolError):
            check(wrong, SWARM)
