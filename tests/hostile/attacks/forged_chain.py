"""Chains of waypoints that the run's members have not signed, shown to members and to a newcomer.

Each identity shows one, again and again to everybody that links with it:

- *invented*: a late version, signed by invented identities;
- *in another's name*: the same, with the founder named as the signer;
- *another run*: rightly signed by the founder of another run;
- *altered*: the honest chain with another hash and the old signatures;
- *continued*: the honest chain, and then a version signed by the attacker alone.
"""

import secrets
from collections.abc import Callable, Sequence
from functools import partial

import msgspec
import trio

from protocol.ids import PeerId
from protocol.waypoints.chain import encode_chain, parse_chain
from protocol.waypoints.part import PART, Part, encode_part, parse_part
from protocol.wire.envelope import Signer
from protocol.wire.messages import WaypointChain
from protocol.wire.parts import CertifiedPart, WaypointLink
from tests.hostile.attack import Attack, Bounds
from tests.hostile.stranger import Stranger

VERSION = 77_777
AGAIN_S = 30.0
"""From the beginning: by then the newcomer has met the identity. Twice in a row is enough to be
shut out; the first time is forgiven by then."""
LOOK_S = 0.2

Links = Sequence[WaypointLink]
Chain = Callable[[Stranger, Links], list[WaypointLink]]
"""Makes a chain, from the honest one."""


def forged(
    stranger: Stranger, signers: Sequence[Signer], *, name: str = "", swarm: str = ""
) -> WaypointLink:
    """Return a link to a late version, with seats for its signers.

    Args:
        stranger: of the run.
        signers: what signs every part.
        name: named as each signer; empty: their own names.
        swarm: in which the signatures hold; empty: this one.
    """
    seats = tuple(sorted(signer.peer for signer in signers))
    parts = []
    for stage in range(stranger.manifest.stage_count):
        body = encode_part(Part(stage, 0, VERSION, secrets.token_bytes(32), seats))
        signed = [
            (name or signer.peer, signer.sign(PART, body, swarm or stranger.swarm).signature)
            for signer in signers
        ]
        parts.append(CertifiedPart(body, tuple(signed)))
    return WaypointLink(tuple(parts))


def invented(stranger: Stranger, _honest: Links) -> list[WaypointLink]:
    """Signed by identities that nobody has."""
    return [forged(stranger, [Signer(secrets.token_bytes(32)) for _ in range(3)])]


def in_anothers_name(stranger: Stranger, _honest: Links) -> list[WaypointLink]:
    """Signed by us, and said to be the founder's."""
    return [forged(stranger, [stranger.signer], name=stranger.manifest.founder)]


def another_run(stranger: Stranger, _honest: Links) -> list[WaypointLink]:
    """Valid where we are the founder."""
    return [forged(stranger, [stranger.signer], swarm=secrets.token_hex(32))]


def altered(stranger: Stranger, honest: Links) -> list[WaypointLink]:
    """The honest chain, but its last version is another one."""
    *before, last = honest
    *others, one = last.parts
    part = msgspec.structs.replace(parse_part(one.body), hash=secrets.token_bytes(32))
    wrong = msgspec.structs.replace(one, body=encode_part(part))
    return [*before, WaypointLink((*others, wrong))]


def continued(stranger: Stranger, honest: Links) -> list[WaypointLink]:
    """The honest chain, and one link more."""
    return [*honest, forged(stranger, [stranger.signer])]


CHAINS: tuple[Chain, ...] = (invented, in_anothers_name, another_run, altered, continued)


async def attack(stranger: Stranger) -> None:
    """Let each identity show its chain."""
    honest = await _chain_of(stranger)
    others = [await stranger.another() for _ in CHAINS[1:]]
    async with trio.open_nursery() as nursery:
        for identity, chain in zip([stranger, *others], CHAINS, strict=True):
            identity.pulse()
            await identity.introduce()
            shown = chain(identity, honest)
            nursery.start_soon(_show_everybody, identity, shown, trio.current_time() + AGAIN_S)


async def _chain_of(stranger: Stranger) -> list[WaypointLink]:
    """Return the chain that the first honest peer has shown us."""
    with trio.move_on_after(2.0):
        async for heard in stranger.heard:
            if isinstance(heard.message, WaypointChain):
                return list(parse_chain(heard.payload))
    raise AssertionError("the honest ones have no chain of waypoints yet")


async def _show_everybody(identity: Stranger, chain: Links, again_at: float) -> None:
    """Show a chain to everybody that links with an identity, newcomers included."""
    met = set[PeerId]()
    async with trio.open_nursery() as nursery:
        while True:
            for peer in set(identity.peers) - met:
                met.add(peer)
                nursery.start_soon(partial(_show, identity, peer, chain, again_at))
            await trio.sleep(LOOK_S)


async def _show(identity: Stranger, peer: PeerId, chain: Links, again_at: float) -> None:
    for at in (trio.current_time(), again_at, again_at):
        await trio.sleep_until(at)
        await identity.say(peer, WaypointChain(), encode_chain(tuple(chain)))


ATTACK = Attack(
    name="forged-chain",
    issue="17.1",
    what="Five identities show forged chains of waypoints, the chain of another run and altered "
    "ones; one of four volunteers comes back as a newcomer meanwhile.",
    stranger=attack,
    restarts=True,
    forgets=True,
    lasts_s=45.0,
    bounds=Bounds(shut_out_by=4),
)
