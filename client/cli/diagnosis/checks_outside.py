"""Further checks of ``volunteer doctor``: the clock, the GPU, and the way to the swarm.

None sends more than the opening of a connection to remembered members, and none raises.
"""

from __future__ import annotations

import resource
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress

import trio

from client.cli.diagnosis.checks import Check, Status
from client.cli.reach.home import Home, own_hosts
from client.cli.reach.running import ending_words
from client.cli.terminal.output import human_bytes
from client.config import Settings
from client.control.client import ControlClient, ControlError, running_nodes
from client.net.errors import DialError
from client.net.transport import transport_of
from client.store.last_run import RunRecord
from client.store.swarms import SwarmStore
from protocol.address import Address
from protocol.hosts import is_global, is_loopback
from protocol.invite import SwarmFile

MIN_DESCRIPTORS = 512
DIAL_TIMEOUT_S = 2.0
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


def check_gpu(settings: Settings) -> Check:
    """The graphics cards that can compute."""
    if settings.device == "cpu":
        return Check("gpu", "ok", "not used: device is cpu")
    found = list(_nvidia_cards())
    if found:
        return Check("gpu", "ok", "; ".join(found))
    if settings.device.startswith("cuda"):
        words = f"device is {settings.device}, but NVIDIA's driver finds no card"
        return Check(
            "gpu", "fail", words, "install the driver, or: volunteer config set device cpu"
        )
    return Check("gpu", "ok", "none found; the volunteer computes on the processor")


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
        yield Check("swarm", "ok", "none joined yet")
    for swarm in known:
        yield _check_swarm(swarm)


def check_node(home: Home) -> Iterator[Check]:
    """Check the volunteers that run here by their own status."""
    running = running_nodes(home.folders.runtime)
    if not running:
        yield _check_last_run(RunRecord(home.folders.data))
    for path, _ in running:
        try:
            with ControlClient(path) as node:
                now = node.status()
        except ControlError as error:
            yield Check("volunteer", "warn", str(error), "see volunteer logs")
            continue
        if now.reach.state != "unknown":
            level: Status = "warn" if now.reach.state == "unreachable" else "ok"
            yield Check("reached", level, now.reach.words, now.reach.next_step)
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
    answer = sum(trio.run(_answers, peer) for peer in peers)
    words = f"{answer} of {len(peers)} remembered members answer"
    if answer:
        return Check(name, "ok", words)
    return Check(name, "warn", words, "ask a member for a fresh invite, or check the firewall")


async def _answers(peer: Address) -> bool:
    with trio.move_on_after(DIAL_TIMEOUT_S), suppress(DialError):
        async with transport_of(peer).dial(peer):
            return True
    return False


def _nvidia_cards() -> Iterator[str]:
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # no driver, or a library of another version
        return
    try:
        driver = _text(pynvml.nvmlSystemGetDriverVersion())
        for index in range(pynvml.nvmlDeviceGetCount()):
            card = pynvml.nvmlDeviceGetHandleByIndex(index)
            memory = pynvml.nvmlDeviceGetMemoryInfo(card)
            name = _text(pynvml.nvmlDeviceGetName(card))
            yield f"{name}, {human_bytes(memory.free)} free, driver {driver}"
    except pynvml.NVMLError:
        return
    finally:
        pynvml.nvmlShutdown()


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
