"""Further checks of ``volunteer doctor``: the clock, the way to the swarm, and what runs.

None sends more than the opening of a connection to remembered members, under a throw-away
identity, and none raises.
"""

from __future__ import annotations

import resource
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress

import trio

from client.cli.diagnosis.check_hosts import ranks_by_host
from client.cli.diagnosis.checks import Check, Status
from client.cli.reach.home import Home, own_hosts
from client.cli.reach.running import ending_words
from client.config import Settings
from client.control.client import ControlClient, ControlError
from client.control.sockets import live_sockets
from client.net.errors import DialError, NetworkError
from client.net.transport import transport_of
from client.store.last_run import RunRecord
from client.store.swarms import SwarmStore
from protocol.address import Address
from protocol.hosts import is_global, is_loopback
from protocol.invite import SwarmFile

MIN_DESCRIPTORS = 512
DIAL_TIMEOUT_S = 2.0
GREET_TIMEOUT_S = 10.0
MOST_DIALLED = 5
EARLIEST = 1_760_000_000.0
"""A clock before this time (Unix seconds) is wrong: the software is newer."""


def check_clock() -> Check:
    """The clock is right: records of a member whose clock is two minutes off are refused."""
    if time.time() < EARLIEST:
        return Check("clock", "fail", time.ctime(), "set the clock: sudo timedatectl set-ntp true")
    if (control := shutil.which("timedatectl")) is None:
        return Check(
            "clock", "ok", f"{time.ctime()}; this system does not report whether it is synchronised"
        )
    command = [control, "show", "-p", "NTPSynchronized", "--value"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return Check("clock", "ok", time.ctime())
    if done.stdout.strip() == "no":
        words = f"{time.ctime()}, not synchronised with a time server"
        return Check("clock", "warn", words, "sudo timedatectl set-ntp true")
    return Check("clock", "ok", time.ctime())


def check_descriptors() -> Check:
    """Enough files and connections may be open at once."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < MIN_DESCRIPTORS:
        return Check("open files", "warn", f"{soft} at most", f"ulimit -n {min(hard, 4096)}")
    return Check("open files", "ok", "enough")


def check_reachability(settings: Settings) -> Check:
    """Whether others can dial this machine, judged by its own addresses."""
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
    for swarm in known:
        yield _check_swarm(swarm)


def check_node(home: Home) -> Iterator[Check]:
    """Check the volunteers that run here by their own status."""
    try:
        running = live_sockets(home.folders.runtime)
    except OSError as error:
        yield Check("volunteer", "warn", f"cannot look for it: {error.strerror}")
        return
    if not running:
        yield _check_last_run(RunRecord(home.folders.data))
    for path in running:
        try:
            with ControlClient(path) as node:
                now = node.status()
        except ControlError as error:
            words = f"one runs, but: {error.message}"
            step = "it may hang, be stopped, or be another version: volunteer list, volunteer logs"
            yield Check("volunteer", "fail", words, step)
            continue
        if now.reach.state != "unknown":
            level: Status = "warn" if now.reach.state == "unreachable" else "ok"
            yield Check("reached", level, now.reach.words, now.reach.next_step)
        if ranks := ranks_by_host(now.workers):
            yield Check("ranks", "ok", ranks)
        words = f"{now.swarm_name}: {now.state}: {now.reason}"
        alone = not now.peers and now.uptime_s > 60
        if now.counters.doubled_microbatches:
            yield Check(
                "volunteer",
                "fail",
                f"{words}; counted twice",
                "report it, with volunteer doctor --bundle report.zip",
            )
        elif now.lacks_text and now.state == "waiting":
            yield Check("volunteer", "warn", words, "volunteer stop, then join with --data FILE")
        elif now.last_error:
            yield Check("volunteer", "warn", f"{words}; last: {now.last_error}", "volunteer logs")
        elif alone:
            yield Check(
                "volunteer",
                "warn",
                f"{words}; knows no other member",
                "start the other volunteers, or ask a member for a fresh invite",
            )
        else:
            yield Check("volunteer", "ok", words)


def _check_last_run(record: RunRecord) -> Check:
    run, ending = record.load(), record.ending()
    if run is not None and run.runs:
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


def _check_swarm(swarm: SwarmFile) -> Check:
    name = f"swarm {swarm.manifest.name}"
    peers = list(swarm.peers[:MOST_DIALLED])
    if not peers:
        return Check(name, "ok", "no member is remembered; others must dial this machine")
    answering = [peer for peer in peers if trio.run(_answers, peer)]
    words = f"{len(answering)} of {len(peers)} remembered members answer"
    if not answering:
        step = "ask a member for a fresh invite, start the other volunteers, or check the firewall"
        return Check(name, "warn", f"{words}: {', '.join(map(_shown, peers))}", step)
    return _check_greetings(name, answering, words)


def _check_greetings(name: str, members: list[Address], words: str) -> Check:
    """Check that one of the members is who was expected, and speaks our protocol."""
    try:
        from client.node.greeting import OURS, greeting
    except ImportError as error:  # another check tells more
        return Check(name, "warn", f"{words}, but {error}", "see the checks of the packages")
    trouble = ""
    for member in members:
        try:
            hello = trio.run(greeting, member, GREET_TIMEOUT_S)
        except (NetworkError, OSError) as error:
            trouble = trouble or f"{_shown(member)}: {error}"
            continue
        if hello.protocol == OURS:
            return Check(name, "ok", words)
        older = "this program is older: upgrade it" if hello.protocol > OURS else "they are older"
        return Check(
            name,
            "fail",
            f"{words}, but {hello.client} there speaks protocol {hello.protocol}, and this program "
            f"{OURS}",
            f"{older}; all members of a swarm need the same protocol",
        )
    step = "another program or volunteer has that address now: ask a member for a fresh invite"
    return Check(name, "warn", f"{words}, but none as a member; {trouble}", step)


def _shown(peer: Address) -> str:
    return f"{peer.host}:{peer.port}"


async def _answers(peer: Address) -> bool:
    with trio.move_on_after(DIAL_TIMEOUT_S), suppress(DialError):
        async with transport_of(peer).dial(peer):
            return True
    return False
