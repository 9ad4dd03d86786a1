"""Newcomers: the share of a step that members get before their work was audited."""

import heapq
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import pytest

from protocol.effects import Explain, Send
from protocol.ids import PeerId, peer_id_from_key
from protocol.pace import LOOK_S
from protocol.pipeline.ledger import to_bitmap
from protocol.pipeline.newcomers import MAX_KNOWN, NOBODY, TOGETHER, Bound, Newcomers
from protocol.pipeline.next_hop import NextHop
from protocol.pipeline.timing import UNMEASURED_S
from protocol.rounds.reports import Report
from protocol.seat.leases import Leases
from protocol.view import Replica
from protocol.wire.messages import Lease, LeaseRequest, LedgerReport
from tests.support.effects import sent

PER_STEP = 64
PEERS = [peer_id_from_key(n.to_bytes(32, "big")) for n in range(2 * MAX_KNOWN)]
OLD, NEW = PEERS[:3], PEERS[3:]


def replicas(
    peers: Collection[PeerId],
    audits: dict[PeerId, Sequence[PeerId]] | None = None,
) -> list[Replica]:
    """Replicas of a stage, and whom each says that it has audited in agreement."""
    said = audits or {}
    return [Replica(peer, 1, True, audited=tuple(said.get(peer, ()))) for peer in peers]


@pytest.fixture
def newcomers() -> Newcomers:
    """Of a stage in which three have closed steps together."""
    made = Newcomers(active=True)
    made.update(replicas(OLD))
    made.settle()
    return made


class TestWhoIsOne:
    def test_nobody_where_all_have_begun_together(self) -> None:
        made = Newcomers(active=True)
        for here in (OLD[:1], OLD, [*OLD, *NEW[:50]]):
            assert made.update(replicas(here)) == NOBODY, "links come one after the other"
        made.settle()
        assert made.update(replicas([*OLD, *NEW[:50]])) == NOBODY

    def test_whoever_comes_later_until_a_majority_has_audited_it(
        self, newcomers: Newcomers
    ) -> None:
        new = NEW[0]
        here = [*OLD, new]
        assert newcomers.update(replicas(here)) == Bound({new: 0}, 3)
        assert newcomers.update(replicas(here, {OLD[0]: [new]})) == Bound({new: 1}, 3)
        assert newcomers.update(replicas(here, {o: [new] for o in OLD[:2]})) == NOBODY
        assert newcomers.update(replicas(here)) == NOBODY, "it stays so"

    def test_what_newcomers_say_of_each_other_counts_for_nothing(
        self, newcomers: Newcomers
    ) -> None:
        crowd = NEW[:50]
        here = replicas([*OLD, *crowd], dict.fromkeys(crowd, crowd))
        assert newcomers.update(here).named == dict.fromkeys(crowd, 0)

    def test_one_that_was_away_is_none(self, newcomers: Newcomers) -> None:
        newcomers.update(replicas(OLD[:2]))
        assert newcomers.update(replicas(OLD)) == NOBODY

    def test_nobody_where_all_are_new(self, newcomers: Newcomers) -> None:
        assert newcomers.update(replicas(NEW[:3])) == NOBODY
        assert newcomers.update(replicas(NEW[:4])).named == {NEW[3]: 0}

    def test_nobody_without_audits(self) -> None:
        made = Newcomers(active=False)
        made.update(replicas(OLD))
        made.settle()
        assert made.update(replicas([*OLD, *NEW[:9]])) == NOBODY

    def test_what_is_known_is_bounded(self, newcomers: Newcomers) -> None:
        for number in range(0, 2 * MAX_KNOWN, 8):
            newcomers.update(replicas(PEERS[number : number + 8]))
        assert len(newcomers._known) <= MAX_KNOWN


def report(done: Collection[int], per_step: int = PER_STEP) -> Report:
    """A replica's ledger, as the leader decodes it."""
    return Report.of(LedgerReport(0, 0, 1, to_bitmap(done, 0, per_step), b"", 0), per_step)


def leased(effects: Sequence[Send | Explain]) -> list[tuple[PeerId, list[int]]]:
    return [(to, lease.ids) for to, lease in sent(effects, Lease)]


@dataclass
class Step:
    """A step of stage 0 whose leader leases by a bound; replicas come back for more.

    ``takes`` are the seconds of each replica for a microbatch; a replica keeps two.
    """

    bound: Bound
    takes: dict[PeerId, float]
    per_step: int = PER_STEP
    got: dict[PeerId, list[int]] = field(default_factory=lambda: defaultdict(list))

    def run(self, greedy: Collection[PeerId] = ()) -> float:
        """Return the seconds until all is done; who is ``greedy`` asks for the whole step."""
        leases = Leases(0, self.per_step)
        leases.bound = self.bound
        leases.start_step(0)
        now, done = 0.0, 0
        ends: list[tuple[float, PeerId]] = []
        free_at = dict.fromkeys(self.takes, 0.0)
        for peer in [*greedy, *(p for p in self.takes if p not in greedy)]:
            leases.ask(peer, LeaseRequest(0, self.per_step if peer in greedy else 2, 0), 0.0)
        while done < self.per_step:
            reports = {peer: report(ids, self.per_step) for peer, ids in self.got.items()}
            for peer, ids in leased(leases.grant(reports, self.takes, now)):
                self.got[peer] += ids
                for _ in ids:
                    free_at[peer] = max(now, free_at[peer]) + self.takes[peer]
                    heapq.heappush(ends, (free_at[peer], peer))
            if not ends:
                now += LOOK_S
                continue
            now, peer = heapq.heappop(ends)
            done += 1
            want = self.per_step if peer in greedy else 1
            leases.ask(peer, LeaseRequest(0, want, self.per_step), 0.0)
        return now

    def share(self, peers: Collection[PeerId]) -> float:
        return sum(len(self.got[peer]) for peer in peers) / self.per_step


class TestLeases:
    def test_one_that_computes_nothing_gets_an_equal_share_in_place_of_nearly_all(self) -> None:
        liar = NEW[0]
        takes = dict.fromkeys(OLD, 1.0) | {liar: 0.0}
        free = Step(NOBODY, takes)
        free.run(greedy=[liar])
        assert free.share([liar]) > 0.8, "what it was"
        bound = Step(Bound({liar: 0}, 3), takes)
        bound.run(greedy=[liar])
        assert bound.share([liar]) == 1 / 4

    @pytest.mark.parametrize(("named", "share"), [(0, 1 / 4), (1, 1 / 2), (2, 3 / 4), (9, 1.0)])
    def test_the_share_grows_with_each_that_has_audited_it(self, named: int, share: float) -> None:
        assert Bound({NEW[0]: named}, 3).most(NEW[0], PER_STEP) == share * PER_STEP

    @pytest.mark.parametrize("crowd", [2, 10, 29, 50])
    def test_a_crowd_gets_half_together(self, crowd: int) -> None:
        liars = NEW[:crowd]
        step = Step(
            Bound(dict.fromkeys(liars, 0), 3), dict.fromkeys(OLD, 1.0) | dict.fromkeys(liars, 0.0)
        )
        step.run(greedy=liars)
        assert step.share(liars) <= TOGETHER
        assert step.share(OLD) >= 1 - TOGETHER

    @pytest.mark.parametrize("crowd", [1, 3, 12])
    def test_honest_newcomers_make_no_step_longer_than_without_them(self, crowd: int) -> None:
        takes = dict.fromkeys(OLD, 1.0)
        before = Step(NOBODY, takes).run()
        more = takes | dict.fromkeys(NEW[:crowd], 1.0)
        assert Step(Bound(dict.fromkeys(NEW[:crowd], 0), 3), more).run() < before

    def test_work_does_not_wait_for_others_that_take_none(self) -> None:
        leases, here = Leases(0, PER_STEP), {NEW[0]}
        leases.bound = Bound({NEW[0]: 0}, 3)
        leases.start_step(0)
        leases.ask(NEW[0], LeaseRequest(0, PER_STEP, 0), 0.0)
        [(_, got)] = leased(leases.grant({}, here, 0.0))
        assert len(got) == PER_STEP // 4
        reports = {NEW[0]: report(got)}
        assert leases.grant(reports, here, UNMEASURED_S - 0.1) == []
        [(_, rest)] = leased(leases.grant(reports, here, UNMEASURED_S))
        assert len(got) + len(rest) == PER_STEP


def routed(bound: Bound, new: Sequence[PeerId], *, arrive: float) -> float:
    """Send microbatches to three that need a second each and to newcomers that need no time and
    say that they are fast; return the share of the newcomers.

    Args:
        bound: of the newcomers.
        new: they.
        arrive: microbatches a second.
    """
    hop = NextHop()
    hop.update(dict.fromkeys(OLD, 1.0) | dict.fromkeys(new, 50.0))
    hop.bound = bound
    got, now, count = Counter[PeerId](), 0.0, 480
    busy = dict.fromkeys(OLD, 0.0)
    out: list[tuple[float, PeerId, float]] = []
    for _ in range(count):
        now += 1 / arrive
        while out and out[0][0] <= now:
            at, peer, took = heapq.heappop(out)
            hop.accounts[peer].release()
            hop.accounts[peer].settle(took, 1, at)
        chosen = hop.choose(now)
        got[chosen] += 1
        ends = now + 0.01
        if chosen in busy:
            ends = busy[chosen] = max(busy[chosen], now) + 1.0
        heapq.heappush(out, (ends, chosen, ends - now))
    return sum(got[peer] for peer in new) / count


class TestNextHop:
    @pytest.mark.parametrize("crowd", [3, 10, 50])
    def test_a_crowd_gets_half_together(self, crowd: int) -> None:
        liars = NEW[:crowd]
        bound = Bound(dict.fromkeys(liars, 0), 3)
        assert routed(bound, liars, arrive=6.0) <= TOGETHER

    def test_it_grows_with_each_that_has_audited_it(self) -> None:
        shares = [routed(Bound({NEW[0]: n}, 3), NEW[:1], arrive=4.0) for n in (0, 1, 2)]
        assert shares == sorted(shares)
        assert shares[-1] > 1.5 * shares[0]
