"""Members certify versions while they train; a newcomer begins with what the chain says."""

from pathlib import Path

import trio

from client.store.paths import Kept, home_folders
from client.store.persisted import Persisted
from client.store.records import KeptChain
from protocol.effects import Publish
from protocol.pace import FORGET_S
from protocol.recovery.stored import STORED, Copy, Stored, begun
from protocol.wire.parts import SeatStatus
from tests.support.protocol_examples import peer
from tests.support.train_swarm import TestSwarm, Volunteer, open_swarm

EVERY, STEPS = 20, 40
FALSE = begun(1, 20, (b"a" * 32, b"b" * 32), (peer(99),), b"")
"""Another run, one roll-back later."""
INVENTED = 6


def certified(volunteer: Volunteer) -> int:
    newest = volunteer.engine.waypoints.machine.newest
    return newest.version if newest is not None else 0


async def pair(swarm: TestSwarm) -> list[Volunteer]:
    return [await swarm.add(0, founder=True), await swarm.add(1)]


async def invent(swarm: TestSwarm, number: int) -> Volunteer:
    """One more identity that says it serves the other run, and has copies of it."""
    one = await swarm.add()
    stage = number % 2
    seat = SeatStatus(stage, STEPS, "serving", 0, 1.0, era=FALSE.era)
    one.held_stages.seats = lambda: [seat]  # type: ignore[method-assign]
    copies = tuple(Copy(s, FALSE.version, digest) for s, digest in enumerate(FALSE.hashes))
    me = one.peer
    await swarm.until(lambda: one.engine.membership.records.seq((STORED, me)) > 0)
    one.engine.history = None  # it would say again what is true
    one.engine.perform(Publish(STORED, Stored(FALSE, copies)))
    one.engine.seats_changed()
    return one


async def beside_an_invented_majority(swarm: TestSwarm) -> tuple[list[Volunteer], Volunteer]:
    """The run is over, so that nothing but the newcomer's beliefs change."""
    honest = await pair(swarm)
    await swarm.until(lambda: all(min(v.held_stages.newest) >= STEPS for v in honest))
    assert {certified(v) for v in honest} == {STEPS}
    invented = [await invent(swarm, number) for number in range(INVENTED)]
    await swarm.until(lambda: all(len(v.engine.handshake.admitted) > INVENTED for v in honest))
    late = await swarm.add(1)
    for one in invented:
        one.engine.seats_changed()
    return honest, late


async def test_a_newcomer_is_not_shown_another_run_by_an_invented_majority(tmp_path: Path) -> None:
    async with open_swarm(tmp_path, steps=STEPS, checkpoint_every=EVERY) as swarm:
        honest, late = await beside_an_invented_majority(swarm)
        await swarm.until(lambda: late.serves(1))
        await trio.sleep(3 * FORGET_S)
        assert len({v.lineage.era for v in (*honest, late)} - {FALSE.era}) == 1
        assert late.step(1) == STEPS
        newest = honest[1].engine.waypoints.machine.newest
        assert newest is not None
        assert late.engine.waypoints.machine.newest == newest
        made = next(c.hash for c in honest[1].engine.commits if c.version == STEPS)
        assert newest.hashes[1].hex() == made
        now = late.shown()
        assert (now.certified_version, now.certified_links) == (STEPS, 2)
        for one in [*honest, late]:
            assert one.engine.internal_errors == 0


async def test_the_chain_is_on_disk_for_the_next_process(tmp_path: Path) -> None:
    async with open_swarm(tmp_path, steps=2000, checkpoint_every=EVERY) as swarm:
        honest = await pair(swarm)
        home = honest[0].disk.parent
        file = home_folders(home).of(swarm.file.swarm, Kept.WAYPOINTS)
        await swarm.until(lambda: certified(honest[0]) >= 2 * EVERY)
        chain = Persisted(file, KeptChain).read()
        assert chain.links == honest[0].engine.waypoints.machine.chain
        again = await swarm.add(home=home)
        assert certified(again) >= 2 * EVERY
        proves = again.engine.history.machine.evidence.proves
        assert all(proves(volunteer.peer) for volunteer in honest)

        file.write_bytes(file.read_bytes()[:-7])
        damaged = await swarm.add(home=home)
        assert certified(damaged) == 0
