"""A node that only relays, from its start to its end: what it answers."""

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from client.config import Settings
from client.control.methods import Impossible
from client.errors import ExitCode, UserError, first_of
from client.events import Event
from client.net.connection_limiter import HostLimits
from client.net.libp2p_network import open_network
from client.node.node import ASK_FOR_INVITE, HELLO_S, Node, NodeOptions
from client.store.paths import home_folders, make_private
from client.store.swarms import SwarmStore
from protocol.amendments.changes import Changes
from protocol.invite import SwarmFile
from protocol.manifest import Policy
from tests.support.protocol_examples import manifest, peer, signer

ENDS_S = 20


@asynccontextmanager
async def relay(founder: int = 1, **policy: Any) -> AsyncIterator[tuple[Node, list[Event]]]:
    """A node of volunteer 1, once it is a member; it ends well with the block."""
    run = manifest(peer(founder), policy=Policy(**policy))
    swarm = SwarmFile(run, *signer(founder).sign_manifest(run), ())
    told, ended = list[Event](), list[ExitCode]()
    with tempfile.TemporaryDirectory(prefix="vol") as home:  # a socket's path must be short
        folders = home_folders(Path(home))
        for folder in (folders.data, folders.runtime):
            make_private(folder)
        ready = trio.Event()
        options = NodeOptions(
            Settings(no_port_mapping=True, nickname="Ada"),
            swarm,
            relay_only=True,
            ready=lambda _: ready.set(),
        )
        seed, limits = (1).to_bytes(32, "big"), HostLimits(hello_s=HELLO_S)
        async with open_network(seed, ("127.0.0.1", 0), limits) as network:
            store = SwarmStore(folders.swarms)
            node = Node(options, folders, signer(1), network, swarm, store, told.append, [])

            async def run_it() -> None:
                ended.append(await node.run(trio.Event()))

            with trio.fail_after(ENDS_S):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(run_it)
                    await ready.wait()
                    while not node.status().started:
                        await trio.sleep(0.01)
                    yield node, told
                    node.finish()
            assert ended == [ExitCode.OK]
            assert node.status().state == "stopping"


async def test_a_relay_says_how_it_is_and_pauses() -> None:
    async with relay() as (node, told):
        now = node.status()
        assert (now.state, now.reason) == ("relaying", "it holds no stage")
        assert (now.peer, now.swarm_name, now.step, now.steps) == (peer(1), "example", 0, 100)
        assert now.relay is not None
        assert (now.relay.members, now.matches, now.paused) == (0, None, None)
        pause = node.pause(reason="I need the line")
        assert node.status().paused == pause
        assert (node.resume(), node.resume()) == (True, False)
        assert node.status().paused is None
        words = [event.words for event in node.update().events]
        assert words == [event.words for event in told]
        assert words[-2:] == ["paused: I need the line", "resumed"]
        curve = node.history()
        assert (curve.points, curve.held_out) == ([], [])


async def test_an_open_swarms_invite_names_who_makes_it_and_nobody_is_expelled() -> None:
    async with relay() as (node, _):
        invite = node.invite()
        assert [address.rpartition("/")[2] for address in invite.members] == [peer(1)]
        assert (invite.swarm_name, invite.private) == ("example", False)
        for asked in ({"once": True}, {"life_s": 60.0}):
            with pytest.raises(Impossible, match="founded with --private"):
                node.invite(**asked)  # type: ignore[arg-type]
        with pytest.raises(Impossible, match="nobody vouches for anybody"):
            node.expel("abc")


async def test_where_members_vouch_an_invite_is_a_ticket_and_only_who_was_met_is_expelled() -> None:
    async with relay(private=True) as (node, _):
        many, one = node.invite(), node.invite(once=True, life_s=3600.0)
        assert many.private
        assert many.invite != one.invite
        assert one.notes[-1].startswith("it lets in one volunteer within 60 minutes")
        with pytest.raises(Impossible, match="no member met here is called abc"):
            node.expel("abc")


async def test_who_was_not_invited_is_told_so_before_it_dials() -> None:
    with pytest.raises(ExceptionGroup) as raised:
        async with relay(2, private=True):
            pass
    refused = first_of(raised.value, UserError)
    assert "example is entered by invitation, and nobody has invited us" in str(refused)
    assert (refused.exit_code, refused.next_step) == (ExitCode.REFUSED, ASK_FOR_INVITE)


async def test_whom_the_swarm_expels_ends_and_says_why() -> None:
    async def is_expelled() -> None:
        async with relay(private=True) as (node, _):
            assert node._engine.handshake.vouching is not None
            node._engine.handshake.vouching._out("you are expelled")

    with pytest.raises(ExceptionGroup) as raised:
        await is_expelled()
    refused = first_of(raised.value, UserError)
    assert (str(refused), refused.next_step) == ("you are expelled", ASK_FOR_INVITE)


@pytest.mark.parametrize("founder", [1, 2])
async def test_the_founder_alone_changes_the_run(founder: int) -> None:
    async with relay(founder) as (node, told):
        if founder != 1:
            with pytest.raises(Impossible, match=f"only the founder of this swarm, {peer(2)}"):
                node.amend(Changes(steps=200))
            return
        with pytest.raises(Impossible):
            node.amend(Changes())
        asked = node.amend(Changes(steps=200))
        assert (asked.signed, node.status().steps) == (False, 100)
        assert node.amend(Changes(steps=200), sign=True).signed
        assert node.status().steps == 200
        assert told[-1].words.startswith("the founder says: ")
