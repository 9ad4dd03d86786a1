"""What a volunteer learns of a swarm before it is a member, and whom it dials."""

from dataclasses import replace
from pathlib import Path

import pytest
import trio

from client.errors import ExitCode, UserError
from client.events import Event
from client.net.errors import DialError, TurnedAway
from client.net.libp2p_network import Libp2pNetwork
from client.net.network import Inbound, NetEvent
from client.store.swarms import SwarmStore
from client.train.messaging.bootstrap import (
    REPLY_S,
    TURNED_AWAY_S,
    dial_first,
    fetch_manifest,
    find_swarm,
    remember_swarm,
)
from client.train.messaging.handshake import CLIENT, PROTOCOL
from client.train.messaging.kept_links import MAX_MET, KeptLinks
from protocol.address import Address
from protocol.ids import PeerId, SwarmId, peer_id_from_key
from protocol.invite import MAX_PEERS, Invite, SwarmFile, Target
from protocol.manifest import swarm_id
from protocol.membership.roster import Roster
from protocol.wire.messages import Goodbye, Hello, Message, RecordDigest
from tests.support.full_disk import full
from tests.support.memory_network import open_memory_hub
from tests.support.protocol_examples import advert, manifest, peer, signer

GONE = Address("ip4", "192.0.2.1", 9, peer_id_from_key(bytes(range(32))))
ME = peer_id_from_key(b"m" * 32)


MEMBER = peer_id_from_key(b"n" * 32)
RUN = manifest(signer(1).peer)
ENCODED, SIGNATURE = signer(1).sign_manifest(RUN)
KNOWN = SwarmFile(RUN, ENCODED, SIGNATURE, (GONE,))
SWARM = swarm_id(ENCODED)


@pytest.fixture
def store(tmp_path: Path) -> SwarmStore:
    return SwarmStore(tmp_path / "swarms")


async def find(target: Target, store: SwarmStore) -> SwarmFile | UserError:
    async with open_memory_hub() as hub:
        network = hub.join(ME)
        try:
            return await find_swarm(network, target, store, ME, [], 5.0)
        except UserError as error:
            return error


async def test_where_nobody_answers_a_member_comes_back_and_a_stranger_is_told(
    store: SwarmStore,
) -> None:
    assert (await find(KNOWN, store)).exit_code == ExitCode.UNREACHABLE
    store.remember(KNOWN)
    assert (await find(KNOWN, store)).swarm == SWARM


async def test_a_newer_invite_adds_its_members_though_none_answered_yet(store: SwarmStore) -> None:
    """The node goes on dialling those it was told of; the newest word comes first."""
    store.remember(KNOWN)
    named = tuple(replace(GONE, port=port) for port in range(10, 10 + MAX_PEERS))
    for count in (1, MAX_PEERS):
        found = await find(Invite(SWARM, named[:count], None), store)
        assert found.peers == (*named[:count], GONE)[:MAX_PEERS]


class ConnectionLimiter(Libp2pNetwork):
    """A member that lets nobody in before a time of day."""

    def __init__(self, error: DialError, opens_at: float) -> None:
        self._error, self._opens_at = error, opens_at

    async def connect(self, *addresses: str) -> PeerId:
        await trio.lowlevel.checkpoint()
        if trio.current_time() < self._opens_at:
            raise self._error
        return GONE.peer


async def test_who_is_turned_away_tries_longer_than_who_finds_nobody() -> None:
    """A crowd at a member's door leaves a place now and then."""
    began = trio.current_time()
    late = began + TURNED_AWAY_S - 5
    assert await dial_first(ConnectionLimiter(TurnedAway("full"), late), [GONE], 20.0) == GONE.peer
    began = trio.current_time()
    with pytest.raises(UserError, match="within 20 s"):
        await dial_first(ConnectionLimiter(DialError("nobody"), began + 60), [GONE], 20.0)
    assert trio.current_time() - began == pytest.approx(20.0)
    with pytest.raises(UserError, match="full"):
        await dial_first(ConnectionLimiter(TurnedAway("full"), 1e9), [GONE], 20.0)


@pytest.mark.parametrize(
    ("theirs", "next_step"), [(PROTOCOL + 1, "upgrade it"), (PROTOCOL - 1, "its program is older")]
)
async def test_a_member_of_another_protocol_is_named_with_whose_program_is_older(
    theirs: int, next_step: str
) -> None:
    """Its refusal comes later, and says only what it speaks itself."""
    async with open_memory_hub() as hub:
        network, member = hub.join(ME), hub.join(MEMBER)
        peer = await network.connect(f"/memory/{MEMBER}")
        member.post(ME, Hello(theirs, None, "volunteer/9"))
        member.post(ME, Goodbye(f"this swarm speaks protocol {theirs}"))
        with pytest.raises(UserError, match=f"speaks protocol {theirs}, and") as raised:
            await fetch_manifest(network, peer, None, [])
    assert raised.value.exit_code == ExitCode.REFUSED
    assert next_step in raised.value.next_step


def told(manifest: bytes, signature: bytes) -> Hello:
    return Hello(PROTOCOL, SWARM, "v", manifest=manifest, signature=signature)


async def fetched(*said: Message, swarm: SwarmId | None = SWARM) -> SwarmFile | UserError:
    """What comes of a manifest that a member sends, or of what it says instead."""
    async with open_memory_hub() as hub:
        network, member = hub.join(ME), hub.join(MEMBER)
        peer = await network.connect(f"/memory/{MEMBER}")
        for message in said:
            member.post(ME, message)
        seen = list[NetEvent]()
        try:
            found = await fetch_manifest(network, peer, swarm, seen)
        except UserError as error:
            return error
        assert len(seen) >= len(said), "the engine gets all of it"
        async for event in member.events:
            if isinstance(event, Inbound):
                assert event.message == Hello(PROTOCOL, None, CLIENT), "it shows no ticket"
                break
        return found


async def test_the_manifest_is_found_among_what_a_member_says() -> None:
    reply = told(ENCODED, SIGNATURE)
    for swarm in (SWARM, None):
        found = await fetched(
            Hello(PROTOCOL, None, "v"), RecordDigest([], True), reply, swarm=swarm
        )
        assert (found.swarm, found.peers) == (SWARM, ())


@pytest.mark.parametrize(
    ("said", "swarm", "words"),
    [
        (Goodbye("you are expelled"), SWARM, "the swarm refuses us: you are expelled"),
        (told(ENCODED, SIGNATURE), "cd" * 32, "not genuine: manifest-of-another-swarm"),
        (told(ENCODED, bytes(64)), SWARM, "not genuine: bad-signature"),
        (told(ENCODED, b""), SWARM, "not genuine: bad-signature"),
        (told(ENCODED[:-1], SIGNATURE), None, "not genuine"),
        (told(ENCODED.replace(b"{", b'{"new":1,', 1), SIGNATURE), None, "the swarm's"),
    ],
)
async def test_what_a_member_sends_in_place_of_our_manifest_is_refused(
    said: Message, swarm: SwarmId, words: str
) -> None:
    error = await fetched(said, swarm=swarm)
    assert words in error.message
    assert error.exit_code == ExitCode.REFUSED


async def test_a_member_that_sends_nothing_is_waited_for_a_while() -> None:
    began = trio.current_time()
    error = await fetched(RecordDigest([], True))
    assert error.exit_code == ExitCode.UNREACHABLE
    assert f"{MEMBER} did not send" in error.message
    assert trio.current_time() - began == pytest.approx(REPLY_S)


async def test_an_invite_that_names_only_us_names_nobody(store: SwarmStore) -> None:
    ours = replace(GONE, peer=ME)
    error = await find(Invite(SWARM, (ours,), None), store)
    assert "names no member except this volunteer" in error.message
    known = await find(replace(KNOWN, peers=(ours,)), store)
    assert isinstance(known, SwarmFile), "with the file nobody is asked"


async def test_a_ticket_is_kept_until_a_newer_one_comes(store: SwarmStore) -> None:
    old, new = b"o" * 32, b"n" * 32
    store.remember(replace(KNOWN, ticket=old))
    for given, kept in ((None, old), (new, new)):
        found = await find(Invite(SWARM, (GONE,), given), store)
        assert found.ticket == kept


def test_a_disk_that_refuses_a_new_swarm_ends_the_start_and_a_known_one_is_a_warning(
    store: SwarmStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    remember, said = store.remember, list[Event]()

    monkeypatch.setattr(store, "remember", full)
    with pytest.raises(UserError, match=r"cannot write the swarm to .*: No space left"):
        remember_swarm(KNOWN, store, said.append)
    remember(KNOWN)
    remember_swarm(KNOWN, store, said.append)
    (told,) = said
    assert told.level == "error"
    monkeypatch.setattr(store, "remember", remember)
    remember_swarm(KNOWN, store, said.append)
    assert len(said) == 1


# --- neighbours, recently lost ones, and those it met before ----------------------------------


def at(number: int, host: str = "192.0.2.1") -> Address:
    return Address("ip4", host, 1000 + number, peer(number))


def test_who_was_met_before_is_called_until_it_is_heard_of() -> None:
    roster = Roster(peer(0))
    kept = KeptLinks([at(1), at(2), Address("ip4", "192.0.2.9", 9)])
    assert kept.wanted(roster) == {peer(n): (str(at(n)),) for n in (1, 2)}
    roster.advertise(peer(1), advert(), 1)
    assert kept.wanted(roster) == {
        peer(1): advert().addresses,
        peer(2): (str(at(2)),),
    }


def test_who_died_is_called_and_who_left_is_not_until_its_goodbye_is_old() -> None:
    roster, kept = Roster(peer(0)), KeptLinks([at(1), at(2)])
    for number in (1, 2):
        roster.advertise(peer(number), advert(leaving=number == 2), 1)
        roster.link_up(peer(number))
        roster.link_down(peer(number), "reset")
    assert list(kept.wanted(roster)) == [peer(1)]
    for number in (1, 2):
        roster.withdraw(peer(number), "its advert expired")
    assert kept.wanted(roster) == {peer(n): (str(at(n)),) for n in (1, 2)}


def test_of_those_met_since_the_start_whom_it_met_long_ago_is_forgotten_first() -> None:
    kept = KeptLinks()
    kept.meet(at(number) for number in range(1, MAX_MET + 1))
    kept.meet([at(1), at(MAX_MET + 1)])
    wanted = kept.wanted(Roster(peer(0)))
    assert len(wanted) == MAX_MET
    assert peer(1) in wanted
    assert peer(MAX_MET) not in wanted
    kept.meet(at(number) for number in range(100, 100 + 2 * MAX_MET))
    assert [*kept.wanted(Roster(peer(0)))] == [peer(100 + n) for n in range(MAX_MET)]


def test_an_address_of_the_invite_is_never_forgotten() -> None:
    kept = KeptLinks([at(1)])
    kept.meet([at(1, "192.0.2.2")])
    kept.meet(at(number) for number in range(2, MAX_MET + 2))
    assert kept.wanted(Roster(peer(0)))[peer(1)] == (str(at(1)),)
    kept.meet([at(1, "192.0.2.2")])
    both = (str(at(1, "192.0.2.2")), str(at(1)))
    assert kept.wanted(Roster(peer(0)))[peer(1)] == both
