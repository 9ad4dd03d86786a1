"""Finding the swarm: dial the members an invite names, and get the manifest from one of them.

The search is bounded in time. The error lists every attempt and its result, so that a user can act
on it.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import trio

from client.errors import ExitCode, UserError
from client.events import Event, LogLine
from client.net.errors import NetworkError, TurnedAway
from client.net.libp2p_network import Libp2pNetwork
from client.net.network import Inbound, NetEvent
from client.store.swarms import SwarmStore
from client.train.messaging.handshake import CLIENT, PROTOCOL
from protocol.address import Address, by_peer
from protocol.errors import RemoteProtocolError
from protocol.ids import PeerId, SwarmId, short
from protocol.invite import MAX_PEERS, Invite, SwarmFile, Target
from protocol.manifest import is_of_another_version, swarm_id
from protocol.wire.envelope import verify_manifest
from protocol.wire.messages import Goodbye, Hello

RETRY_S = 1.0
TURNED_AWAY_S = 75.0
"""Whoever turns us away is there: a crowd is at its door, and we may get in at another try."""
REPLY_S = 10.0


async def find_swarm(
    network: Libp2pNetwork,
    target: Target,
    store: SwarmStore | None,
    me: PeerId,
    seen: list[NetEvent],
    timeout_s: float,
) -> SwarmFile:
    """Connect to a member; return the swarm with its manifest, fetched if need be.

    If no member answers, a former member starts alone: it may be the first to come back.

    Args:
        store: the swarms known on this machine; None: none of them counts.
        seen: collects network events about anything else.
        timeout_s: limit for the whole search.

    Raises:
        UserError: no member was reached, or it belongs to another swarm.
    """
    known = _known_swarm(target, store)
    named = (target,) if isinstance(target, Address) else target.peers
    remembered = known.peers if known else ()
    peers = [p for p in dict.fromkeys((*named, *remembered)) if p.peer != me]
    if peers:
        try:
            member = await dial_first(network, peers, timeout_s)
        except UserError:
            if known is None or store is None or store.load(known.swarm) is None:
                raise
    elif known is None:
        raise UserError(
            "the invite names no member except this volunteer",
            "ask another member for a fresh invite",
        )
    if known is not None:
        peers = list(dict.fromkeys((*named, *known.peers)))
        ticket = known.ticket if isinstance(target, Address) else target.ticket or known.ticket
        return replace(known, peers=tuple(peers[:MAX_PEERS]), ticket=ticket)
    swarm = target.swarm if isinstance(target, Invite) else None
    fetched = await fetch_manifest(network, member, swarm, seen)
    ticket = target.ticket if isinstance(target, Invite) else None
    return replace(fetched, peers=tuple(named), ticket=ticket)


def remember_swarm(swarm: SwarmFile, store: SwarmStore, tell: Callable[[Event], None]) -> None:
    """Save a swarm for the next start; for one that is known already a failure is only told. Raises
    UserError: the disk refuses, and the swarm is new."""
    try:
        store.remember(swarm)
    except OSError as error:
        problem = f"cannot write the swarm to {store.folder}: {error.strerror}"
        if store.load(swarm.swarm) is None:
            raise UserError(problem, "make room: volunteer cache --prune") from error
        tell(LogLine(words=problem, level="error"))


def _known_swarm(target: Target, store: SwarmStore | None) -> SwarmFile | None:
    if isinstance(target, SwarmFile):
        verify_manifest(target.encoded, target.signature)
        return target
    return store.load(target.swarm) if store and isinstance(target, Invite) else None


async def dial_first(network: Libp2pNetwork, peers: Sequence[Address], timeout_s: float) -> PeerId:
    """Connect to the first member that answers; they are tried in turn, each at all its addresses.
    If a member turns us away, the limit is at least ``TURNED_AWAY_S``. Raises UserError: no member
    answered in time (exit code 69); lists the attempts."""
    tried: dict[PeerId, str] = {}
    began = trio.current_time()
    with trio.move_on_after(timeout_s) as patience:
        while True:
            for peer, addresses in by_peer(peers).items():
                try:
                    return await network.connect(*map(str, addresses))
                except NetworkError as error:
                    tried[peer] = str(error)
                    if isinstance(error, TurnedAway):
                        patience.deadline = max(patience.deadline, began + TURNED_AWAY_S)
            await trio.sleep(RETRY_S)
    raise unreachable(list(tried.values()) or [*map(str, peers)], trio.current_time() - began)


def unreachable(tried: Sequence[str], timeout_s: float) -> UserError:
    """Return the error for a swarm of which no member answers."""
    return UserError(
        f"no member of the swarm answered within {timeout_s:.0f} s; tried {'; '.join(tried)}",
        "check that a member runs and can be reached, or ask for a fresh invite",
        ExitCode.UNREACHABLE,
    )


async def fetch_manifest(
    network: Libp2pNetwork, peer: PeerId, swarm: SwarmId | None, seen: list[NetEvent]
) -> SwarmFile:
    """Ask a linked member for the manifest and verify it; a ticket is not shown yet, which would
    redeem it.

    Args:
        swarm: the expected swarm; None: any.
        seen: collects other network events of that time, for the engine.

    Raises:
        UserError: it refuses, does not answer, or sends an invalid manifest.
    """
    network.admit(peer)  # otherwise the manifest queues behind records that wait for admission
    network.post(peer, Hello(PROTOCOL, None, CLIENT))
    with trio.move_on_after(REPLY_S):
        async for event in network.events:
            seen.append(event)
            if not isinstance(event, Inbound) or event.peer != peer:
                continue
            match event.message:
                case Hello(protocol=theirs) if theirs != PROTOCOL:
                    raise _other_protocol(peer, theirs)
                case Hello(manifest=manifest, signature=signature) if manifest:
                    return _checked(manifest, signature, swarm)
                case Goodbye(reason):
                    next_step = "compare the invite with the founder's, or ask for a fresh one"
                    raise UserError(f"the swarm refuses us: {reason}", next_step, ExitCode.REFUSED)
                case _:
                    pass
    raise UserError(
        f"{peer} did not send the swarm's manifest",
        "ask a member for the .swarm file",
        ExitCode.UNREACHABLE,
    )


def _other_protocol(peer: PeerId, theirs: int) -> UserError:
    older = "this program is older: upgrade it, and start again"
    if theirs < PROTOCOL:
        older = "its program is older: ask its owner to upgrade it, or use the older program here"
    words = f"the member {short(peer)} speaks protocol {theirs}, and this program {PROTOCOL}"
    return UserError(words, older, ExitCode.REFUSED)


def _checked(manifest: bytes, signature: bytes, swarm: SwarmId | None) -> SwarmFile:
    try:
        if swarm is not None and swarm_id(manifest) != swarm:
            raise RemoteProtocolError("manifest-of-another-swarm")
        checked = verify_manifest(manifest, signature)
    except RemoteProtocolError as error:
        if is_of_another_version(error):
            next_step = "run the version of this program that its members run"
            raise UserError(f"the swarm's {error}", next_step, ExitCode.REFUSED) from error
        raise UserError(
            f"the manifest we were sent is not genuine: {error}",
            "ask somebody you trust for a fresh invite",
            ExitCode.REFUSED,
        ) from error
    return SwarmFile(checked, manifest, signature, ())
