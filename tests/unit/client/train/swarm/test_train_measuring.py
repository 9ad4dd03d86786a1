"""Partners are measured by their messages; what seats and the matching see of the others."""

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import pytest

from client.train.swarm.measuring import MAX_PENDING, Measuring
from client.train.swarm.views import eras_served, live_members, matching_members, swarm_view
from protocol.effects import Explain, Publish
from protocol.ids import PeerId, Stage
from protocol.matching.population import Population
from protocol.membership.measured import (
    MAX_PARTNERS,
    MEASURED,
    MOST_RATE,
    Measurements,
    Partner,
    StageRate,
)
from protocol.membership.membership import Membership
from protocol.membership.roster import FULL_MESH_UP_TO, Roster
from protocol.membership.view import RecordChanged, ViewChanged
from protocol.pipeline.effects import Committed
from protocol.reputation.service import Account
from protocol.wire.messages import Backward, Chunk, ChunkRequest, Forward, Heartbeat, Receipt
from tests.support.protocol_examples import SWARM, advert, manifest, peer, seat

RUN = manifest(stages=2, microbatches_per_step=40)
F = RUN.stages[0].flops
LIAR = peer(6)


def measuring() -> Measuring:
    return Measuring(peer(0), RUN, Membership(peer(0), SWARM, 2))


def test_a_claim_of_five_times_what_others_measure_is_corrected_and_no_other() -> None:
    machine, (honest, *others) = measuring(), [peer(n) for n in range(1, 6)]
    claims = {LIAR: 5 * F} | dict.fromkeys((honest, *others), 2 * F)
    roster = machine._membership.roster
    for name, flops in claims.items():
        roster.advertise(name, advert(flops=flops, serves=(seat(1),)), 1)
        roster.link_up(name)
        roster.heard(name, [seat(1)])

    def believed() -> dict[str, float]:
        """What the matching goes by."""
        members = matching_members(roster, peer(0), machine.believed)
        return {one.peer: one.flops for one in members if one.peer in claims}

    machine.tick([], 0.0)
    assert believed() == claims
    effects: list[object] = []
    told = Measurements((Partner(LIAR, (StageRate(1, 10**6, 300),)),))
    for number, author in enumerate(others, start=1):
        machine.record(RecordChanged(MEASURED, author, told))
        effects += machine.tick([], 10.0 * number)
    said = [one.words for one in effects if isinstance(one, Explain)]
    assert ["1/5.0 of what it claims" in words for words in said] == [True]
    assert ViewChanged(None) in effects
    assert believed() == pytest.approx(claims | {LIAR: F}, rel=0.02)
    population = Population(matching_members(roster, peer(0), machine.believed), RUN.stages, 2)
    assert min(claims, key=lambda name: population.rate(name, Stage(1))) == LIAR
    for author in others:
        machine.record(RecordChanged(MEASURED, author, None))
    machine.tick([], 100.0)
    assert believed() == claims


def test_siblings_are_measured_by_what_is_counted_of_them_in_a_step() -> None:
    machine, fast, slow = measuring(), peer(1), peer(2)
    for second in range(200):
        version, now = second // 10, float(second)
        if second % 10 == 0:
            shares = {"roll": (fast, slow), "shares": (30, 10)}
            machine.closed(Committed(1, version, "", None, 0.0, 1, 1, **shares), now)
        for name in (fast, slow):
            machine.received(name, Heartbeat(second, [seat(1, version, queue=3)]), 0, now)
        machine.tick([seat(1, version, queue=3)], now)
    accounts = machine.service.accounts(200.0)
    assert accounts[fast, Stage(1)].rate == pytest.approx(3.0, rel=0.05)
    assert accounts[slow, Stage(1)].rate == pytest.approx(1.0, rel=0.05)


def test_versions_that_rise_without_end_are_no_rate_that_cannot_be_said() -> None:
    """Anybody may hold a stage alone, and announce a hundred steps a second."""
    run = manifest(stages=2, microbatches_per_step=16_384)
    machine = Measuring(peer(0), run, Membership(peer(0), SWARM, 2))
    machine._membership.describe(advert(), 0.0)
    for number in range(1200):
        said = Heartbeat(number, [seat(1, number, queue=3)])
        machine.received(LIAR, said, 0, number / 100)
    (record,) = [e for e in machine.tick([], 12.0) if isinstance(e, Publish)]
    (partner,) = record.said.partners
    assert [rate.rate for rate in partner.rates] == [MOST_RATE]


def test_of_many_partners_those_are_told_that_were_measured_longest() -> None:
    machine, count = measuring(), MAX_PARTNERS + 8
    machine._membership.describe(advert(), 0.0)
    for number in range(1, count + 1):
        account = machine.service._accounts.setdefault((peer(number), Stage(1)), Account())
        account.add(5.0, 60.0 * number, 0.0)
    (record,) = [e for e in machine.tick([], 1.0) if isinstance(e, Publish)]
    told = record.said.partners
    assert {one.peer for one in told} == {peer(number) for number in range(9, count + 1)}


def test_news_waits_for_its_minute() -> None:
    machine = measuring()
    membership = machine._membership
    membership.describe(advert(), 0.0)
    published = []
    for second in range(300):
        for stage in (0, 1):
            account = machine.service._accounts.setdefault((peer(1), stage), Account())
            account.add(float(second % 7) ** 3, 30.0, float(second))
        effects = machine.tick([], float(second))
        published += [second for effect in effects if isinstance(effect, Publish)]
    assert len(published) >= 4
    assert all(later - sooner >= 60 for sooner, later in pairwise(published))


def test_our_own_queue_says_that_the_stage_beside_us_did_not_hold_things_up() -> None:
    for queue, measured in ((0, True), (4, False)):
        machine = measuring()
        for second in range(200):
            version, now = second // 10, float(second)
            if second % 10 == 0:
                machine.closed(Committed(0, version, "", None, 0.0, 1, 1), now)
            for name in (peer(1), peer(2)):
                said = [seat(1, version, queue=3)]
                machine.received(name, Heartbeat(second, said), 0, now)
                back = Backward(0, version, version * 40 + second % 10)
                machine.received(name, back, 9, now)
            machine.tick([seat(0, version, queue=queue)], now)
        account = machine.service.accounts(200.0).get((peer(2), 1))
        assert (account is not None and account.measured_s > 100) is measured


# --- transfers ---------------------------------------------------------------------------------

ROOT = bytes(32)


def download(machine: Measuring, donor: PeerId, start: float, rate: float) -> None:
    size, now = 2**21, start
    for index in range(4):
        machine.sent(donor, ChunkRequest(ROOT, index), 0, now)
    for index in range(30):
        now += size / rate
        machine.received(donor, Chunk(ROOT, index), size, now)
        if index < 26:
            machine.sent(donor, ChunkRequest(ROOT, index + 4), 0, now)


def test_a_download_measures_our_line() -> None:
    machine = measuring()
    download(machine, peer(1), 0.0, 20e6)
    download(machine, peer(2), 100.0, 5e6)
    assert machine.incoming.own_bytes_per_s == pytest.approx(20e6, rel=0.02)


def test_serving_chunks_measures_our_line() -> None:
    machine = measuring()
    for receiver, start, rate in ((peer(1), 0.0, 20e6), (peer(2), 100.0, 5e6)):
        now = start
        for index in range(40):
            if index >= 4:  # asked for when an earlier one has come
                now += 2**21 / rate
            machine.sent(receiver, Chunk(ROOT, index), 2**21, now)
    assert machine.outgoing.own_bytes_per_s == pytest.approx(20e6, rel=0.02)


def test_small_activations_measure_no_line_and_large_ones_do() -> None:
    machine = measuring()
    for size, start in ((1000, 0.0), (2**22, 1000.0)):
        for m in range(50):
            now = start + m
            machine.sent(peer(1), Forward(1, 0, m, False), size, now)
            machine.received(peer(1), Receipt(1, 0, m, "known"), 0, now + 0.5)
        best = machine.outgoing.own_best_bytes_per_s
        assert best == (0 if size == 1000 else pytest.approx(2**23))


def test_payloads_that_nobody_answers_are_forgotten() -> None:
    machine = measuring()
    for microbatch in range(2 * MAX_PENDING):
        machine.sent(peer(1), Forward(1, 0, microbatch, False), 1 << 20, 0.0)
    assert len(machine._pending) == MAX_PENDING
    assert min(microbatch for _, microbatch in machine._pending) == MAX_PENDING


def test_a_receipt_for_nothing_changes_nothing() -> None:
    machine = measuring()
    machine.received(peer(1), Receipt(1, 0, 5, "known"), 0, 1.0)
    machine.received(peer(1), Chunk(ROOT, 5), 2**21, 2.0)
    machine.gone(peer(9))
    assert machine.incoming.own_s == machine.outgoing.own_s == 0


# --- views of the roster, in swarms too large for a full mesh ---------------------------------

ME = peer(0)


def linked_as_wanted(members: dict[PeerId, int], own: PeerId = ME) -> Roster:
    """Everybody serves; the links are those that are wanted."""
    roster = Roster(own)
    for other, stage in members.items():
        roster.advertise(other, advert(serves=(seat(stage, 27),)), 1)
    roster.heard(own, [seat(members[own], 27)])
    for other in roster.neighbours():
        roster.link_up(other)
        roster.heard(other, [seat(members[other], 27)])
    return roster


def lose(roster: Roster, others: Iterable[PeerId]) -> None:
    for other in others:
        roster.link_down(other, "connection reset")


@pytest.mark.parametrize(("stages", "replicas"), [(16, 2), (24, 4), (40, 3), (96, 2), (2, 60)])
def test_no_stage_of_a_healthy_swarm_seems_empty_to_anybody(stages: int, replicas: int) -> None:
    members = {peer(n): n % stages for n in range(stages * replicas)}
    for own in list(members)[: min(stages, 12)]:
        roster = linked_as_wanted(members, own)
        view = swarm_view(roster, stages, 0)
        assert view.empty_stages() == ()
        assert live_members(roster, own) == frozenset(members)


def test_a_stage_of_which_all_are_lost_is_empty_whether_linked_or_not() -> None:
    stages = 24
    members = {peer(n): n % stages for n in range(stages * 4)}
    roster = linked_as_wanted(members)
    holders = [other for other, stage in members.items() if stage == 12]
    linked = [other for other in holders if other in roster.neighbours()]
    assert 0 < len(linked) < len(holders)
    lose(roster, linked)
    assert swarm_view(roster, stages, 0).empty_stages() == ()  # the others may be there
    assert [other for other in roster.neighbours() if other in holders]  # and are called now
    lose(roster, [other for other in holders if other not in linked])
    assert swarm_view(roster, stages, 0).empty_stages() == (12,)
    assert not live_members(roster, ME) & set(holders)


def test_in_a_full_mesh_who_has_no_link_is_not_there() -> None:
    members = {peer(n): n % 4 for n in range(FULL_MESH_UP_TO - 1)}
    roster = linked_as_wanted(members)
    for other in (other for other, stage in members.items() if stage == 2):
        roster.link_down(other, "closed")
    assert swarm_view(roster, 4, 0).empty_stages() == (2,)
    assert len(live_members(roster, ME)) == sum(stage != 2 for stage in members.values())


def test_how_far_the_others_are_and_in_which_lineage() -> None:
    roster = Roster(ME)
    for n, (era, version) in enumerate([(0, 7), (0, 9), (5, 3), (8, 40), (9, 2)], start=1):
        roster.advertise(peer(n), advert(serves=(seat(n % 2, version),)), 1)
        roster.link_up(peer(n))
        roster.heard(peer(n), [seat(n % 2, version, era=era)])
    roster.heard(ME, [seat(0, 50, era=5)])
    roster.heard(peer(5), [seat(1, 2, era=9, state="fetching")])
    lose(roster, [peer(4)])
    assert eras_served(roster, ME) == {peer(1): {0: 7}, peer(2): {0: 9}, peer(3): {5: 3}}


def matched(roster: Roster, *unproven: PeerId, certified: Iterable[PeerId] = ()) -> dict[Any, Any]:
    """Return what the matching goes by, by member."""
    how = roster, ME, Measuring(ME, manifest(), None).believed, unproven
    return {one.peer: one for one in matching_members(*how, certified={*certified})}


def test_the_matching_knows_of_each_member_what_it_may_and_cannot_do() -> None:
    roster = linked_as_wanted({peer(n): n % 2 for n in range(4)})
    roster.advertise(peer(1), advert(unable=(0,)), 2)
    found = matched(roster, peer(3), certified={peer(2), peer(9)})
    assert {p: m.may_decide for p, m in found.items()} == {peer(n): n != 3 for n in range(4)}
    assert [p for p, m in found.items() if m.certified] == [peer(2)], "the newest waypoint names it"
    assert {p: m.ineligible for p, m in found.items() if m.ineligible} == {peer(1): {0}}
    roster.link_down(peer(3), "banned")
    roster.advertise(peer(3), advert(serves=(seat(1, 28),)), 2)
    assert roster.member(peer(3)) is not None, "others pass its adverts on"
    assert matched(roster).keys() == {peer(n) for n in range(3)}


def test_seats_become_home_second_and_fetching() -> None:
    roster = linked_as_wanted({peer(n): n for n in range(2)})
    roster.heard(peer(1), [seat(1, seat=0), seat(2, seat=1, state="fetching")])
    member = matched(roster)[peer(1)]
    assert (member.home, member.second, member.fetching) == (1, 2, {2})
    assert member.seats == 2
