"""Many invented identities of one machine, which do at once all that an identity alone can do.

Each says by an advert that it serves a stage, and by a record that it follows another lineage. As
many as get a place are linked: their heartbeats repeat the claim of a seat, at the highest rate,
and list every honest peer as lost and missing; they report ledgers and ask for leases. The others
are told of over a few links, or hold links that say nothing.
"""

import secrets
from collections.abc import Sequence
from functools import partial

import msgspec
import trio

from protocol.ids import PeerId
from protocol.limits import MAX_RECORDS_PER_MESSAGE
from protocol.recovery.stored import Stored, begun
from protocol.wire.envelope import Envelope, Signer
from protocol.wire.messages import Heartbeat, JoinStage, LeaseRequest, LedgerReport, Records
from protocol.wire.parts import SeatStatus
from tests.hostile.attack import MIB, Attack, Bounds
from tests.hostile.attacks.links import hold_silently
from tests.hostile.bare import again_and_again, bare_link
from tests.hostile.forged import records_of
from tests.hostile.stranger import PULSE_S, Stranger

LINKED = 400
"""Most that are linked with an honest peer each; a node has fewer places."""
TELLERS = 4
"""Links over which the others are told of."""
SILENT = 100
PER_S = 40.0
AGAIN_S = 30.0
WAITS_S = 120.0
"""How long a newcomer is watched; the attack goes on for so long."""


async def attack(stranger: Stranger, identities: int) -> None:
    """Invent identities, and let each do what it can."""
    seeds = [secrets.token_bytes(32) for _ in range(identities)]
    seats: dict[int, SeatStatus] = {}
    linked, told_of = seeds[:LINKED], seeds[LINKED:]
    stranger.pulse()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_watch, stranger, seats)
        claim = partial(_claim, stranger, linked, seats)
        nursery.start_soon(again_and_again, len(linked), PER_S, claim)
        nursery.start_soon(_tell, stranger, [Signer(seed) for seed in told_of], seats)
        silent = partial(hold_silently, stranger, min(SILENT, len(told_of)), PER_S)
        nursery.start_soon(silent)


async def _watch(stranger: Stranger, seats: dict[int, SeatStatus]) -> None:
    """Keep what an honest replica of each stage says of itself."""
    async for heard in stranger.heard:
        if isinstance(heard.message, Heartbeat):
            seats.update({s.stage: s for s in heard.message.seats if s.state == "serving"})


async def _claim(
    stranger: Stranger, seeds: Sequence[bytes], seats: dict[int, SeatStatus], number: int
) -> None:
    """One identity: claim a seat on one link, again whenever the link is lost."""
    seed, stage = seeds[number], number % stranger.manifest.stage_count
    address = stranger.addresses[(number // 2) % len(stranger.addresses)]
    signer, count = Signer(seed), 0
    nothing = bytes(-(-stranger.manifest.microbatches_per_step // 8))
    async with bare_link(address, stranger.swarm, seed=seed) as link:
        while not link.session.closed:
            if (seat := _boast(stranger, seats.get(stage))) is not None:
                if count == 0:
                    await link.say(Records(_records(stranger, signer, seat)))
                    await link.say(JoinStage(stage))
                count += 1
                await link.say(Heartbeat(count, [seat]))
                await link.say(LedgerReport(stage, seat.version, count, nothing, nothing, 0))
                if stage == 0:
                    await link.say(LeaseRequest(seat.version, 8, 0))
            await trio.sleep(PULSE_S)


def _boast(stranger: Stranger, seat: SeatStatus | None) -> SeatStatus | None:
    if seat is None:
        return None
    missing = tuple[PeerId, ...](stranger.peers)
    return msgspec.structs.replace(seat, rate=1e6, queue=0, missing=missing)


def _records(stranger: Stranger, signer: Signer, seat: SeatStatus) -> list[Envelope]:
    """Return an identity's advert, with a seat, and its record of the lineage that it follows."""
    later = Stored(begun(1, 0, (), (signer.peer,), b""))
    rates = {"flops": 1e12, "upload_bytes_per_s": 1e8, "download_bytes_per_s": 1e8}
    serves = (msgspec.structs.replace(seat, missing=()),)
    return records_of(stranger, signer, later, serves=serves, **rates)


async def _tell(
    stranger: Stranger, signers: Sequence[Signer], seats: dict[int, SeatStatus]
) -> None:
    """Tell of identities without a link over a few links, as fast as these take it."""
    while len(seats) < stranger.manifest.stage_count:
        await trio.sleep(0.1)
    await stranger.introduce()
    tellers = [await stranger.another() for _ in range(TELLERS - 1)]
    for teller in tellers:
        await teller.introduce()
    each = MAX_RECORDS_PER_MESSAGE // 2
    while True:
        for at in range(0, len(signers), each):
            stages = [n % len(seats) for n in range(at, at + each)]
            some = zip(signers[at : at + each], stages, strict=False)
            records = [r for s, stage in some for r in _records(stranger, s, seats[stage])]
            teller = [stranger, *tellers][(at // each) % TELLERS]
            await teller.say_to_all(Records(records))
        await trio.sleep(AGAIN_S)


WHAT = (
    "{count:,} invented identities {where} claim seats, name others as missing, report ledgers, "
    "ask for leases, follow a later lineage, are told of, or hold idle links."
)


def _sized(count: int, *, apart: bool, newcomer: bool = False) -> Attack:
    where = "of one machine with one address" if apart else "with any number of addresses"
    more = " Meanwhile one of four volunteers is replaced by a newcomer." if newcomer else ""
    cores = {50: 0.03, 500: 0.08, 5000: 0.1}[count]
    name = f"sybils-{count}{'-apart' * apart}{'-newcomer' * newcomer}"
    return Attack(
        name=name,
        issue="17.4",
        what=WHAT.format(count=count, where=where) + more,
        stranger=partial(attack, identities=count),
        lasts_s=60.0,
        bounds=Bounds(rate=0.9, memory_bytes=100 * MIB, attacker_cores=0.0 if apart else cores),
        apart=apart,
        restarts=newcomer,
        forgets=newcomer,
        returns_within_s=WAITS_S if newcomer else 0.0,
    )


async def _nobody(stranger: Stranger) -> None:
    await trio.sleep_forever()


COUNTS = (50, 500, 5000)
ATTACKS = (
    *(_sized(count, apart=apart) for apart in (False, True) for count in COUNTS),
    *(_sized(500, apart=apart, newcomer=True) for apart in (False, True)),
    Attack(
        name="newcomer",
        issue="17.4",
        what="No attack: one of four volunteers is replaced by a newcomer.",
        stranger=_nobody,
        lasts_s=60.0,
        restarts=True,
        forgets=True,
        returns_within_s=WAITS_S,
    ),
)
