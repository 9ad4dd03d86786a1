"""Further checks of ``volunteer doctor``: the way to the swarm, and what runs.

None sends more than the opening of a connection to remembered members, and none raises.
"""

import resource
from collections.abc import Iterable, Iterator
from contextlib import suppress

import trio

from client.cli.diagnosis.checks import Check, Status
from client.cli.reach.home import Home, own_hosts
from client.cli.reach.running import ending_words
from client.config import Settings
from client.control.client import ControlClient, ControlError
from client.control.snapshot import HOW_TO_UPDATE
from client.control.sockets import live_sockets
from client.net.errors import DialError
from client.net.tcp import TCP
from client.store.last_run import RunRecord
from client.store.paths import Kept
from client.store.swarms import SwarmStore
from client.views.status import other_line
from protocol.address import Address, by_peer
from protocol.hosts import is_global, is_loopback
from protocol.ids import PeerId
from protocol.invite import SwarmFile

MIN_DESCRIPTORS = 512
DIAL_TIMEOUT_S = 2.0
MOST_DIALLED = 5


def check_descriptors() -> Check:
    """Enough files and connections may be open at once."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < MIN_DESCRIPTORS:
        return Check("open files", "warn", f"{soft} at most", f"ulimit -n {min(hard, 4096)}")
    return Check("open files", "ok", "enough")


def check_reachability(settings: Settings) -> Check:
    """Whether others can dial this machine, judged by its own addresses: a volunteer that runs
    finds it out better."""
    if settings.announce:
        return Check("reachability", "ok", f"announced: {', '.join(settings.announce)}")
    hosts = own_hosts(settings.listen_host)
    if hosts == [settings.listen_host]:
        return Check("reachability", "ok", f"listens on {settings.listen_host} only")
    if all(map(is_loopback, hosts)):
        return Check(
            "reachability",
            "fail",
            "no network except this machine's own",
            "connect this machine to a network",
        )
    if not is_global(hosts[0]):
        return Check(
            "reachability",
            "warn",
            f"{hosts[0]} is a private address: members elsewhere may not reach this machine",
            "start the volunteer: it asks the router to let others in, and then says whether they "
            "do; else forward a port",
        )
    words = ", ".join(host for host in hosts if is_global(host))
    return Check("reachability", "ok", f"{words}, if no firewall is in the way")


def check_swarms(home: Home) -> Iterator[Check]:
    """Whether a remembered member of each swarm answers."""
    known = SwarmStore(home.folders.swarms).all()
    if not known:
        words = "none joined yet: there is no invite here"
        step = "volunteer join --swarm x.swarm (or an invite), or found one: volunteer create"
        yield Check("swarm", "ok", words, step)
    own = home.known_peer()
    yield from (_check_swarm(swarm, own) for swarm in known)


def check_node(home: Home) -> Iterator[Check]:
    """Check the volunteers that run here by their own status."""
    running = live_sockets(home.folders.runtime)
    if not running:
        yield _check_last_run(RunRecord(home.folders.data))
    for path in running:
        try:
            with ControlClient(path) as node:
                now = node.status()
        except ControlError as error:
            words = f"one runs, but: {error.message}"
            step = "it may hang, be stopped, or be another version: volunteer logs"
            yield Check("volunteer", "fail", words, step)
            continue
        if now.reach.state != "unknown":
            level: Status = "warn" if now.reach.state == "unreachable" else "ok"
            yield Check("reached", level, now.reach.words, now.reach.next_step)
        if now.newer:
            yield Check("program", "warn", now.newer, HOW_TO_UPDATE)
        for other in now.beside:
            step = "if it lasts for an hour, read volunteer logs on both sides"
            yield Check("two lines", "warn", other_line(other), step)
        if now.given_up is not None:
            step = f"what is kept of them: {home.folders.of(now.swarm, Kept.CHECKPOINTS)}"
            yield Check("given up", "warn", now.given_up.words, step)
        words = f"{now.swarm_name}: {now.state}: {now.reason}"
        alone = not now.peers and not now.network.links and now.uptime_s > 60
        if now.last_error:
            last = "" if now.last_error in now.reason else f"; last: {now.last_error}"
            yield Check("volunteer", "warn", f"{words}{last}", "volunteer logs")
        elif alone:
            step = (
                "if one of the swarm answers (see above), it is dialled within a minute: "
                "volunteer logs; else start the other volunteers, or ask for a fresh invite"
            )
            yield Check("volunteer", "warn", f"{words}; is linked with no other member", step)
        else:
            yield Check("volunteer", "ok", words)


def _check_last_run(record: RunRecord) -> Check:
    run, ending = record.running, record.ending()
    if run is not None:
        words = f"process {run.pid} runs, but does not answer"
        return Check(
            "volunteer",
            "warn",
            words,
            "it may be starting or ending; if this lasts, read volunteer logs",
        )
    if ending is None:
        return Check("volunteer", "ok", "none runs now")
    words = f"none runs now; {ending_words(ending)}"
    return Check("volunteer", "warn" if ending.failed else "ok", words, ending.next_step)


def _check_swarm(swarm: SwarmFile, own: PeerId | None) -> Check:
    """Check the members of a swarm that are remembered, but for ``own``."""
    name = f"swarm {swarm.manifest.name}"
    members = [at for peer, at in by_peer(swarm.peers).items() if peer != own][:MOST_DIALLED]
    if not members:
        return Check(name, "ok", "no member is remembered; others must dial this machine")
    answering = [at for at in members if trio.run(_answer, at)]
    words = f"{len(answering)} of {len(members)} remembered members answer"
    if not answering:
        step = "ask a member for a fresh invite, start the other volunteers, or check the firewall"
        return Check(name, "warn", f"{words}: {', '.join(map(_shown, members))}", step)
    return Check(name, "ok", words)


def _shown(member: Iterable[Address]) -> str:
    return ", ".join(f"{address.host}:{address.port}" for address in member)


async def _answer(member: Iterable[Address]) -> bool:
    """Whether a connection to one of a member's addresses opens."""
    answered = False

    async def dial(address: Address) -> None:
        nonlocal answered
        with suppress(DialError):
            async with TCP.dial(address):
                answered = True
                nursery.cancel_scope.cancel()

    with trio.move_on_after(DIAL_TIMEOUT_S):
        async with trio.open_nursery() as nursery:
            for address in member:
                nursery.start_soon(dial, address)
    return answered
