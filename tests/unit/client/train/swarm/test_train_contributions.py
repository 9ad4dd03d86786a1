"""The leaderboard over real engines and seats: all members show the same one, over roll-backs of
who leaves and who comes late."""

from __future__ import annotations

from pathlib import Path

import trio

from client.store.persisted import Persisted
from client.store.records import KeptContributions
from client.train.swarm.contributions import LOOK_EVERY_S, Contributions
from protocol.contributions.board import Contributor
from protocol.contributions.record import COUNTED, Counted, Counts, StageCounts, encode_counts
from protocol.ids import PeerId
from tests.support.train_swarm import TestSwarm, Volunteer, open_swarm

STEPS = 12


def board(volunteer: Volunteer) -> dict[PeerId, Contributor]:
    return {one.peer: one for one in volunteer.engine.contributions.contributors()}


def peer(volunteer: Volunteer) -> PeerId:
    return volunteer.engine.signer.peer


def own_counts(swarm: TestSwarm) -> dict[PeerId, int]:
    """What each volunteer itself knows to have contributed."""
    everybody = [*swarm.volunteers, *swarm.dead]
    return {peer(one): sum(c.counted for c in one.engine.commits) for one in everybody}


async def start_together(swarm: TestSwarm, *stages: int) -> None:
    """Start when all serve: a step may not be over before the last one has loaded its stage."""
    volunteers = [await swarm.add(stage) for stage in stages]
    await swarm.until(
        lambda: all(one.serves(stage) for one, stage in zip(volunteers, stages, strict=True))
    )
    swarm.start()


async def test_all_members_show_the_same_board_and_it_is_true(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with open_swarm(tmp_path, steps=STEPS) as swarm:
        await start_together(swarm, 0, 0, 0, 1, 1, 1)
        await swarm.until_done()
        truth = {name: count for name, count in own_counts(swarm).items() if count}

        def agreed() -> bool:
            boards = [board(one) for one in swarm.volunteers]
            found = {name: line.microbatches for name, line in boards[0].items()}
            return all(one == boards[0] for one in boards) and found == truth

        await swarm.until(agreed)
        lines = board(swarm.volunteers[0]).values()
        assert all((line.vouchers, line.unvouched) == (2, 0) for line in lines)
        assert sum(truth.values()) == 2 * STEPS * swarm.manifest.microbatches_per_step


async def test_a_liar_raises_neither_itself_nor_a_friend_at_any_member(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with open_swarm(tmp_path, steps=STEPS) as swarm:
        await start_together(swarm, 0, 0, 0, 1)
        await swarm.until_done()
        liar, friend, *others = swarm.volunteers
        truth = own_counts(swarm)
        counted = {peer(one): truth[peer(one)] for one in swarm.volunteers[:3] if truth[peer(one)]}
        await swarm.until(lambda: all(_vouched(one) == counted for one in swarm.volunteers))
        most = STEPS * swarm.manifest.microbatches_per_step
        said = sorted({peer(liar): most // 2, peer(friend): most // 2}.items())
        lie = Counts((StageCounts(0, STEPS, tuple(Counted(*one) for one in said)),))
        engine = liar.engine
        engine._members(engine.membership.say(COUNTED, encode_counts(lie), engine.wall()))
        heard = [one.engine.contributions for one in (friend, *others)]
        await swarm.until(lambda: all(one._records.get(peer(liar)) == lie for one in heard))
        await trio.sleep(2 * LOOK_EVERY_S)
        for one in (friend, *others):
            found = {name: line.microbatches for name, line in board(one).items()}
            assert found.get(peer(liar), 0) == truth[peer(liar)]
            assert found.get(peer(friend), 0) <= truth[peer(friend)]


def _vouched(volunteer: Volunteer) -> dict[PeerId, int]:
    return {name: line.microbatches for name, line in board(volunteer).items() if line.vouchers}


async def test_who_is_gone_keeps_its_credit_at_those_who_came_later(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Two of the first three die one after the other, and two others come: what the dead did is
    vouched for by volunteers of which only one has seen it all."""
    async with open_swarm(tmp_path, steps=400) as swarm:
        first = [await swarm.add(0) for _ in range(3)]
        await swarm.add(1)
        swarm.start()
        await swarm.until(lambda: first[0].step(0) >= 4)
        counts = own_counts(swarm)
        first.sort(key=lambda one: -counts[peer(one)])
        gone = peer(first[0])
        swarm.vanish(first[0])
        done = own_counts(swarm)[gone]
        late = await swarm.add(0)
        await swarm.until(lambda: late.serves(0) and _counted(late, gone, done))
        swarm.vanish(first[1])
        later = await swarm.add(0)
        await swarm.until(lambda: later.serves(0) and _counted(later, gone, done))
        await swarm.until(lambda: board(later)[gone].vouchers >= 2)
        most = swarm.manifest.microbatches_per_step
        assert abs(board(later)[gone].microbatches - done) <= most  # its last step may be lost


def _counted(volunteer: Volunteer, of: PeerId, done: int) -> bool:
    """Whether a volunteer's own account has, but for a step, what somebody did."""
    account = volunteer.engine.contributions._accounts.get(0)
    most = volunteer.engine.manifest.microbatches_per_step
    return account is not None and account.counts.get(of, 0) >= done - most


async def test_a_restart_goes_on_where_it_was(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    path = tmp_path / "kept"
    async with open_swarm(tmp_path, steps=STEPS) as swarm:
        for stage in (0, 0, 0, 1):
            await swarm.add(stage)
        one = swarm.volunteers[0]
        one.engine.contributions.keep_in(path)
        swarm.start()
        await swarm.until_done()
        await swarm.until(lambda: len(board(one)) >= 2)
        one.engine.contributions.save()
        again = Contributions(
            peer(one), swarm.manifest, one.engine.membership, lambda _effects: None, lambda: None
        )
        again.keep_in(path)
        assert again.contributors() == one.engine.contributions.contributors()
        assert again._accounts == one.engine.contributions._accounts
        for committed in one.engine.commits:  # a roll-back after the restart
            again.closed(committed)
        assert again._accounts == one.engine.contributions._accounts
    path.write_bytes(b"\x00" * 100)
    assert Persisted(path, KeptContributions).peek() is None
