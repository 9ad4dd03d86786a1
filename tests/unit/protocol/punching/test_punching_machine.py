"""An attempt of two relayed peers to meet: who says what when, and what no peer can make us do."""

from __future__ import annotations

import random

import pytest

from protocol.errors import RemoteProtocolError
from protocol.hosts import Outer
from protocol.pace import HEARD_S, LOST_S
from protocol.punching.machine import TRIES, Attempt, Meet, Over, PunchEffect, Tell
from protocol.relay.messages import (
    Connect,
    Punch,
    PunchFailed,
    PunchNow,
    PunchRefused,
    RelayMessage,
    Reserve,
)

A, B = Outer(40_001, "11.0.1.2", 50_001), Outer(40_002, "11.0.2.2", 50_002)
AT_A, AT_B = Punch(A.host, A.port), Punch(B.host, B.port)


def beginner(own: Outer | None = A, seen_at: str = B.host) -> Attempt:
    return Attempt(begins=True, seen_at=seen_at, own=own)


def other(own: Outer | None = B) -> Attempt:
    return Attempt(begins=False, seen_at=A.host, own=own)


@pytest.mark.parametrize("one_way_s", [0.001, 0.04, 0.2, 1.0])
def test_both_dial_at_the_same_moment_and_one_begins_noise(one_way_s: float) -> None:
    a, b = beginner(), other()
    assert a.begin(10.0) == [Tell(AT_A)]
    assert b.receive(AT_A, 10.0 + one_way_s) == [Tell(AT_B)]
    asked = 10.0 + 2 * one_way_s
    assert a.receive(AT_B, asked) == [Tell(PunchNow())]
    assert a.round_trip_s == pytest.approx(2 * one_way_s)
    assert a.tick(asked + 0.9 * one_way_s) == []
    arrives = asked + one_way_s
    assert a.deadline == pytest.approx(arrives)
    assert a.tick(a.deadline) == [Meet(B.host, B.port, first=False)]
    assert b.receive(PunchNow(), arrives) == [Meet(A.host, A.port, first=True)]


def test_each_try_measures_anew_and_the_third_is_the_last() -> None:
    a, b, now = beginner(), other(), 0.0
    effects = a.begin(now)
    for number in range(1, TRIES + 1):
        assert effects == [Tell(AT_A)]
        assert b.receive(AT_A, now) == [Tell(AT_B)]
        now += number / 10
        a.receive(AT_B, now)
        assert a.round_trip_s == pytest.approx(number / 10)
        b.receive(PunchNow(), now)
        a.tick(a.deadline)
        assert a.failed(now) == []
        assert b.failed(now) == [Tell(PunchFailed())]
        effects = a.receive(PunchFailed(), now)
    assert effects == [Over(f"{TRIES} tries failed")]


@pytest.mark.parametrize(
    ("seen_at", "place"),
    [
        (B.host, Punch("11.0.9.9", 50_002)),  # a third party's
        ("", AT_B),  # the relay does not say where the peer is
        ("192.168.1.1", Punch("192.168.1.1", 50_002)),
        ("127.0.0.1", Punch("127.0.0.1", 50_002)),
        ("224.0.0.1", Punch("224.0.0.1", 50_002)),
        ("name.example", Punch("name.example", 50_002)),
        (A.host, Punch(A.host, 50_002)),  # in our own home
        ("", Punch(B.host, 0)),
    ],
)
def test_a_place_that_is_not_the_peers_own_is_dialled_by_nobody(seen_at: str, place: Punch) -> None:
    a = beginner(seen_at=seen_at)
    a.begin(0.0)
    assert [type(effect) for effect in a.receive(place, 0.1)] == [Over]
    asked = Attempt(begins=False, seen_at=seen_at, own=A)
    refusal, over = asked.receive(place, 0.0)
    assert refusal == Tell(PunchRefused("elsewhere"))
    assert isinstance(over, Over)


@pytest.mark.parametrize("own", [None, Outer(40_001, A.host, 80)])
def test_who_does_not_know_its_own_place_says_so(own: Outer | None) -> None:
    (over,) = beginner(own=own).begin(0.0)
    assert isinstance(over, Over)
    refusal, over = other(own=own).receive(AT_A, 0.0)
    assert refusal == Tell(PunchRefused("unmapped"))
    assert isinstance(over, Over)
    a = beginner()
    a.begin(0.0)
    assert a.receive(PunchRefused("unmapped"), 0.1) == [Over("the other side refuses: unmapped")]


NOWHERE_A, NOWHERE_B = Outer(0, A.host, 0), Outer(0, B.host, 0)


def test_who_has_another_port_for_each_peer_dials_and_the_other_waits() -> None:
    a, b = beginner(own=NOWHERE_A), other()
    assert a.begin(0.0) == [Tell(Punch(A.host, 0))]
    assert b.receive(Punch(A.host, 0), 0.1) == [Tell(AT_B)]
    assert a.receive(AT_B, 0.2) == [Tell(PunchNow())]
    assert a.tick(a.deadline) == [Meet(B.host, B.port, first=False)]
    assert b.receive(PunchNow(), 0.3) == [Meet(A.host, 0, first=True)]
    a, b = beginner(), other(own=NOWHERE_B)
    a.begin(0.0)
    assert b.receive(AT_A, 0.1) == [Tell(Punch(B.host, 0))]
    assert a.receive(Punch(B.host, 0), 0.2) == [Tell(PunchNow())]
    assert a.tick(a.deadline) == [Meet(B.host, 0, first=False)]
    assert b.receive(PunchNow(), 0.3) == [Meet(A.host, A.port, first=True)]


def test_two_of_whom_no_port_is_known_do_not_try() -> None:
    refusal, over = other(own=NOWHERE_B).receive(Punch(A.host, 0), 0.0)
    assert refusal == Tell(PunchRefused("unmapped"))
    assert isinstance(over, Over)
    a = beginner(own=NOWHERE_A)
    a.begin(0.0)
    assert [type(effect) for effect in a.receive(Punch(B.host, 0), 0.1)] == [Over]


def test_silence_and_slow_circuits_end_it() -> None:
    a = beginner()
    a.begin(0.0)
    assert a.tick(LOST_S - 0.1) == []
    assert a.tick(LOST_S) == [Over("no answer")]
    b = other()
    b.receive(AT_A, 0.0)
    assert b.tick(LOST_S) == [Over("no answer")]
    slow = beginner()
    slow.begin(0.0)
    assert slow.receive(AT_B, HEARD_S + 0.1) == [Over("the circuit is too slow")]


def test_a_storm_of_tries_is_a_broken_rule() -> None:
    b = other()
    for _ in range(TRIES):
        b.receive(AT_A, 0.0)
        b.receive(PunchNow(), 0.0)
        b.failed(0.0)
    with pytest.raises(RemoteProtocolError, match="punch-storm") as refused:
        b.receive(AT_A, 0.0)
    assert refused.value.penalty > 0


@pytest.mark.parametrize("seed", range(300))
def test_whatever_a_peer_says_we_dial_its_own_host_three_times_at_most(seed: int) -> None:
    rng = random.Random(seed)
    said: list[RelayMessage] = [
        AT_A, AT_A, Punch("11.0.9.9", 50_000), PunchNow(), PunchFailed(), PunchRefused("busy"),
        Reserve(), Connect("somebody"),
    ]  # fmt: skip
    begins = rng.random() < 0.5
    machine = Attempt(begins=begins, seen_at=A.host, own=B)
    dialled: list[Meet] = []
    now, effects = 0.0, machine.begin(0.0) if begins else list[PunchEffect]()
    for _ in range(60):
        dialled += [effect for effect in effects if isinstance(effect, Meet)]
        if any(isinstance(effect, Over) for effect in effects):
            break
        now += rng.uniform(0.0, 1.0)
        if machine.state == "dialling":
            effects = machine.failed(now)
            continue
        if machine.state == "waiting" or rng.random() < 0.1:
            effects = machine.tick(now)
            continue
        try:
            effects = machine.receive(rng.choice(said), now)
        except RemoteProtocolError:
            break
    assert len(dialled) <= TRIES
    assert all((one.host, one.port, one.first) == (A.host, A.port, not begins) for one in dialled)
