"""Prometheus metrics of a node, off unless ``--metrics-port`` is set; on loopback unless
``--metrics-host`` names another address.

``METRICS`` is the whole list; the values come from the same snapshot that ``status`` shows. On
loopback a request has to name this machine: a page in a browser may have a name that leads here.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec
import trio

from client.cli.terminal.output import printable
from client.control.snapshot import Snapshot
from client.errors import ExitCode, system_errors
from protocol.hosts import is_loopback, number_of

MAX_REQUEST_BYTES: Final = 8192
REQUEST_TIMEOUT_S: Final = 5.0
MAX_SCRAPERS: Final = 8


class Metric(NamedTuple):
    """One metric; it is a counter where its name ends so."""

    words: str
    read: Callable[[Snapshot], float | Mapping[Any, float | None] | None]
    """Its value, or the values by its labels; None: not known."""
    labels: tuple[str, ...] = ()


def _audits(now: Snapshot) -> Mapping[Any, float | None]:
    found = now.audits.results if now.audits else None
    if found is None:
        return {}
    named = {"agrees": found.agree, "disagrees": found.disagree, "unchecked": found.unchecked}
    return _labelled(named)


def _labelled(values: Mapping[str, float]) -> Mapping[Any, float | None]:
    return {(label,): value for label, value in values.items()}


STAGE: Final = ("stage",)
CONVICTED_BY: Final = ("contradiction", "charges", "inviter")
METRICS: Final[dict[str, Metric]] = {
    "volunteer_info": Metric(
        "Always 1; the labels identify the volunteer.",
        lambda now: {(now.version, now.swarm, now.swarm_name, now.peer): 1},
        ("version", "swarm", "swarm_name", "peer"),
    ),
    "volunteer_state": Metric(
        "1 for the state the node is in.", lambda now: {(now.state,): 1}, ("state",)
    ),
    "volunteer_paused": Metric("1 while it is paused.", lambda now: now.paused is not None),
    "volunteer_step": Metric("Last committed step of the swarm.", lambda now: now.step),
    "volunteer_steps": Metric("Steps of the whole run.", lambda now: now.steps),
    "volunteer_loss": Metric("Loss of that step, nats per token.", lambda now: now.loss),
    "volunteer_held_out_version": Metric(
        "Newest version whose loss on held-out text is known.",
        lambda now: now.held_out.version if now.held_out else None,
    ),
    "volunteer_held_out_loss": Metric(
        "Its loss on held-out text, nats per token.",
        lambda now: now.held_out.loss if now.held_out else None,
    ),
    "volunteer_held_out_bits_per_byte": Metric(
        "The same in bits per byte of text.",
        lambda now: now.held_out.bits_per_byte if now.held_out else None,
    ),
    "volunteer_left_seconds": Metric(
        "About how long the run takes from now on, at the present speed.", lambda now: now.eta_s
    ),
    "volunteer_tokens_per_second": Metric(
        "Speed of the whole swarm.", lambda now: now.tokens_per_s
    ),
    "volunteer_own_tokens_per_second": Metric(
        "This volunteer's part of it.", lambda now: now.own_tokens_per_s
    ),
    "volunteer_stage_version": Metric(
        "Newest committed version of a stage.",
        lambda now: {(each.stage,): each.version for each in now.stages},
        STAGE,
    ),
    "volunteer_stage_replicas": Metric(
        "Volunteers that serve a stage.",
        lambda now: {
            (each.stage,): sum(one.state == "serving" for one in each.replicas)
            for each in now.stages
        },
        STAGE,
    ),
    "volunteer_seat": Metric(
        "1 for every stage that this volunteer holds.",
        lambda now: {(seat.stage, seat.state): 1 for seat in now.seats},
        ("stage", "state"),
    ),
    "volunteer_peers": Metric("Members known.", lambda now: len(now.peers)),
    "volunteer_links": Metric("Open connections.", lambda now: now.network.links),
    "volunteer_sent_bytes_total": Metric(
        "Bytes sent since the start.", lambda now: now.network.sent_bytes
    ),
    "volunteer_received_bytes_total": Metric(
        "Bytes received since the start.", lambda now: now.network.received_bytes
    ),
    "volunteer_node_rss_bytes": Metric("Memory of the node process.", lambda now: now.rss_bytes),
    "volunteer_worker_rss_bytes": Metric(
        "Memory of its workers.", lambda now: sum(one.rss_bytes for one in now.workers)
    ),
    "volunteer_worker_restarts_total": Metric(
        "Worker restarts.", lambda now: now.counters.worker_restarts
    ),
    "volunteer_time_spent_ratio": Metric(
        "Shares of the last steps' time: computing, averaging, waiting for work, resting.",
        lambda now: _labelled(msgspec.structs.asdict(now.time_spent)) if now.time_spent else {},
        ("on",),
    ),
    "volunteer_rounds_committed_total": Metric(
        "Steps this volunteer's stages have closed.", lambda now: now.counters.rounds_committed
    ),
    "volunteer_rounds_restarted_total": Metric(
        "Restarted rounds.", lambda now: now.counters.rounds_restarted
    ),
    "volunteer_rounds_restarted_as_leader_total": Metric(
        "Restarted rounds that this volunteer led, by reason.",
        lambda now: _labelled(now.counters.restarts_led),
        ("reason",),
    ),
    "volunteer_rerouted_microbatches_total": Metric(
        "Microbatches sent again to another replica.",
        lambda now: now.counters.rerouted_microbatches,
    ),
    "volunteer_replayed_microbatches_total": Metric(
        "Microbatches computed again because their holder left.",
        lambda now: now.counters.lost_microbatches,
    ),
    "volunteer_doubled_microbatches_total": Metric(
        "Microbatches counted twice; must stay 0.", lambda now: now.counters.doubled_microbatches
    ),
    "volunteer_refused_frames_total": Metric(
        "Refused messages and connections.",
        lambda now: _labelled(now.counters.refused_by_reason),
        ("reason",),
    ),
    "volunteer_contributed_microbatches_total": Metric(
        "Microbatches in committed steps, over all sessions.", lambda now: now.credit.microbatches
    ),
    "volunteer_contributed_tokens_total": Metric(
        "Tokens in committed steps, over all sessions.", lambda now: now.credit.tokens
    ),
    "volunteer_audits_total": Metric(
        "Contributions of others that this volunteer has audited, by result: a member that has "
        "left cannot be checked.",
        _audits,
        ("result",),
    ),
    "volunteer_expelled_members": Metric(
        "Members expelled for the rest of the run, by what convicted them.",
        lambda now: _labelled(
            dict.fromkeys(CONVICTED_BY, 0) | Counter(one.by for one in now.expelled)
        ),
        ("by",),
    ),
    "volunteer_members_by_standing": Metric(
        "Members with anything to their name, by how far this volunteer trusts them.",
        lambda now: _labelled(Counter(one.standing for one in now.trust)),
        ("standing",),
    ),
    "volunteer_uptime_seconds": Metric("Time since the node started.", lambda now: now.uptime_s),
}


def exposition(now: Snapshot) -> bytes:
    """Return a snapshot in Prometheus' text format."""
    return "".join(f"{line}\n" for line in _lines(now)).encode()


def _lines(now: Snapshot) -> Iterator[str]:
    for name, metric in METRICS.items():
        yield f"# HELP {name} {metric.words}"
        yield f"# TYPE {name} {'counter' if name.endswith('_total') else 'gauge'}"
        found = metric.read(now)
        values = found if isinstance(found, Mapping) else {(): found}
        for labels, value in values.items():
            if value is not None:
                pairs = zip(metric.labels, map(_escaped, labels), strict=True)
                named = ",".join(f'{label}="{text}"' for label, text in pairs)
                yield f"{name}{{{named}}} {float(value)}" if named else f"{name} {float(value)}"


def _escaped(label: object) -> str:
    text = printable(str(label)).replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"')


async def serve_metrics(
    host: str,
    port: int,
    snapshot: Callable[[], Snapshot],
    task_status: Any = trio.TASK_STATUS_IGNORED,
) -> None:
    """Answer ``GET /metrics`` until cancelled; starts with the port.

    Args:
        host: address of this machine.
        port: TCP port there.
        snapshot: returns the node's state.
        task_status: gets the port once it is open.

    Raises:
        UserError: the port is taken, or the address is not this machine's.
    """
    problem = f"metrics cannot be served on {host} port {port}"
    next_step = "choose another --metrics-port, or --metrics-host, or 0 for none"
    with system_errors(problem, next_step, ExitCode.CONFIG):
        listeners = await trio.open_tcp_listeners(port, host=host)
    begun: dict[trio.CancelScope, None] = {}  # the oldest first

    async def answer(stream: trio.SocketStream) -> None:
        with trio.move_on_after(REQUEST_TIMEOUT_S) as scope:
            begun[scope] = None
            if len(begun) > MAX_SCRAPERS:  # a slow scraper must not delay others
                next(iter(begun)).cancel()
            try:
                await stream.send_all(_response(await _request(stream), snapshot, own=own))
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return
            finally:
                begun.pop(scope, None)

    bound, bound_port = listeners[0].socket.getsockname()[:2]
    own = is_loopback(bound)
    task_status.started(bound_port)
    await trio.serve_listeners(answer, listeners)


async def _request(stream: trio.SocketStream) -> bytes:
    """Return the complete head of a request; empty if it is not complete."""
    head = bytearray()
    while b"\r\n\r\n" not in head and len(head) <= MAX_REQUEST_BYTES:
        chunk = await stream.receive_some(4096)
        if not chunk:
            return b""
        head += chunk
    return bytes(head)


def _names_this_machine(head: bytes) -> bool:
    """Whether a request says that it is to a number, or to localhost; browsers say to whom."""
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.decode(errors="replace").partition(":")
        if name.strip().lower() == "host":
            host = value.strip().rpartition("]")[0].lstrip("[") or value.strip().partition(":")[0]
            return host.lower() == "localhost" or number_of(host) is not None
    return True


def _response(head: bytes, snapshot: Callable[[], Snapshot], *, own: bool) -> bytes:
    """Answer a request; ``own``: only this machine may ask."""
    words = head.partition(b"\r\n")[0].split(b" ")
    if len(words) != 3 or words[0] != b"GET":
        return _reply("400 Bad Request", "text/plain", b"GET /metrics\n")
    if own and not _names_this_machine(head):
        return _reply("421 Misdirected Request", "text/plain", b"ask localhost\n")
    if words[1].partition(b"?")[0] != b"/metrics":
        return _reply("404 Not Found", "text/plain", b"there is /metrics\n")
    try:
        body = exposition(snapshot())
    except Exception as error:  # a fault in describing the node must not end it
        return _reply("500 Internal Server Error", "text/plain", f"{error!r}\n".encode())
    return _reply("200 OK", "text/plain; version=0.0.4; charset=utf-8", body)


def _reply(status: str, kind: str, body: bytes) -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + body
