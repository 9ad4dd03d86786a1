"""Prometheus metrics of a node, off unless ``--metrics-port`` is set; on loopback unless
``--metrics-host`` names another address.

``METRICS`` is the whole list; the values come from the same snapshot that ``status`` shows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

import msgspec
import trio
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from client.cli.terminal.output import printable
from client.control.snapshot import Snapshot, WorkerView
from client.errors import ExitCode, UserError

MAX_REQUEST_BYTES: Final = 8192
REQUEST_TIMEOUT_S: Final = 5.0
MAX_SCRAPERS: Final = 8

Values = dict[tuple[str, ...], float]


class Described(NamedTuple):
    """One metric: its kind, meaning, labels, and source."""

    kind: str
    words: str
    labels: tuple[str, ...]
    read: Callable[[Snapshot], Values]


def _one(read: Callable[[Snapshot], float | None]) -> Callable[[Snapshot], Values]:
    def values(now: Snapshot) -> Values:
        found = read(now)
        return {} if found is None else {(): float(found)}

    return values


def _gauge(words: str, read: Callable[[Snapshot], float | None]) -> Described:
    return Described("gauge", words, (), _one(read))


def _counter(words: str, read: Callable[[Snapshot], float]) -> Described:
    return Described("counter", words, (), _one(read))


def _by_stage(words: str, read: Callable[[WorkerView], float | None]) -> Described:
    """Describe a gauge of each worker that holds a stage; absent while it is not known."""

    def values(now: Snapshot) -> Values:
        found = {(str(w.stage),): read(w) for w in now.workers if w.stage is not None}
        return {labels: float(value) for labels, value in found.items() if value is not None}

    return Described("gauge", words, ("stage",), values)


def _time_spent(now: Snapshot) -> Values:
    spent = {} if now.time_spent is None else msgspec.structs.asdict(now.time_spent)
    return {(on,): share for on, share in spent.items()}


def _copies(now: Snapshot) -> Values:
    machine = now.machine
    rates = {
        "within": machine.copy_bytes_per_s,
        "to_device": machine.to_device_bytes_per_s,
        "to_host": machine.to_host_bytes_per_s,
    }
    return {(way,): rate for way, rate in rates.items() if rate}


def _audits(now: Snapshot) -> Values:
    if now.audits is None:
        return {}
    found = now.audits.results
    named = {"agrees": found.agree, "disagrees": found.disagree, "unchecked": found.unchecked}
    return {(result,): float(count) for result, count in named.items()}


def _counts(always: Iterable[str], found: Iterable[str]) -> Values:
    """Return how often each label occurs; those of ``always`` also if they do not."""
    counts = Counter(found)
    return {(label,): float(counts[label]) for label in dict.fromkeys([*always, *counts])}


METRICS: Final[dict[str, Described]] = {
    "volunteer_info": Described(
        "gauge",
        "Always 1; the labels identify the volunteer.",
        ("version", "swarm", "swarm_name", "peer"),
        lambda now: {(now.version, now.swarm, now.swarm_name, now.peer): 1.0},
    ),
    "volunteer_state": Described(
        "gauge", "1 for the state the node is in.", ("state",), lambda now: {(now.state,): 1.0}
    ),
    "volunteer_paused": _gauge("1 while it is paused.", lambda now: now.paused is not None),
    "volunteer_step": _gauge("Last committed step of the swarm.", lambda now: now.step),
    "volunteer_steps": _gauge("Steps of the whole run.", lambda now: now.steps),
    "volunteer_loss": _gauge("Loss of that step, nats per token.", lambda now: now.loss),
    "volunteer_held_out_version": _gauge(
        "Newest version whose loss on held-out text is known.",
        lambda now: now.held_out.version if now.held_out else None,
    ),
    "volunteer_held_out_loss": _gauge(
        "Its loss on held-out text, nats per token.",
        lambda now: now.held_out.loss if now.held_out else None,
    ),
    "volunteer_held_out_bits_per_byte": _gauge(
        "The same in bits per byte of text.",
        lambda now: now.held_out.bits_per_byte if now.held_out else None,
    ),
    "volunteer_held_out_vouchers": _gauge(
        "Members whose number that is.", lambda now: now.held_out.vouchers if now.held_out else None
    ),
    "volunteer_left_seconds": _gauge(
        "About how long the run takes from now on, at the present speed; absent while not known.",
        lambda now: now.eta_s,
    ),
    "volunteer_tokens_per_second": _gauge(
        "Speed of the whole swarm.", lambda now: now.tokens_per_s
    ),
    "volunteer_own_tokens_per_second": _gauge(
        "This volunteer's part of it.", lambda now: now.own_tokens_per_s
    ),
    "volunteer_stage_version": Described(
        "gauge",
        "Newest committed version of a stage.",
        ("stage",),
        lambda now: {(str(s.stage),): float(s.version) for s in now.stages},
    ),
    "volunteer_stage_replicas": Described(
        "gauge",
        "Volunteers that serve a stage.",
        ("stage",),
        lambda now: {
            (str(s.stage),): float(sum(r.state == "serving" for r in s.replicas))
            for s in now.stages
        },
    ),
    "volunteer_seat": Described(
        "gauge",
        "1 for every stage that this volunteer holds.",
        ("stage", "state"),
        lambda now: {(str(seat.stage), seat.state): 1.0 for seat in now.seats},
    ),
    "volunteer_peers": _gauge("Members known.", lambda now: len(now.peers)),
    "volunteer_links": _gauge("Open connections.", lambda now: now.network.links),
    "volunteer_sent_bytes_total": _counter(
        "Bytes sent since the start.", lambda now: now.network.sent_bytes
    ),
    "volunteer_received_bytes_total": _counter(
        "Bytes received since the start.", lambda now: now.network.received_bytes
    ),
    "volunteer_node_rss_bytes": _gauge("Memory of the node process.", lambda now: now.rss_bytes),
    "volunteer_worker_rss_bytes": _gauge(
        "Memory of its workers.", lambda now: sum(worker.rss_bytes for worker in now.workers)
    ),
    "volunteer_worker_restarts_total": _counter(
        "Worker restarts.",
        lambda now: sum(worker.restarts for worker in now.workers),
    ),
    "volunteer_time_spent_ratio": Described(
        "gauge",
        "Shares of the last steps' time: computing, averaging, waiting for work, resting.",
        ("on",),
        _time_spent,
    ),
    "volunteer_worker_flop_per_second": _by_stage(
        "Floating-point operations that the model needs, of the passes of the last minute.",
        lambda worker: worker.flop_per_s or None,
    ),
    "volunteer_worker_mfu_ratio": _by_stage(
        "The same by the measured peak of the device, in the run's type of numbers.",
        lambda worker: worker.mfu,
    ),
    "volunteer_worker_computing_mfu_ratio": _by_stage(
        "The same while the worker computes, without waiting.",
        lambda worker: worker.mfu_computing,
    ),
    "volunteer_device_peak_flop_per_second": Described(
        "gauge",
        "Measured peak of products of matrices, by the type of numbers.",
        ("precision",),
        lambda now: {(name,): peak for name, peak in now.machine.peak_flop_per_s.items()},
    ),
    "volunteer_device_copy_bytes_per_second": Described(
        "gauge",
        "Measured rate of copies: within the device, from the host to it, and back.",
        ("way",),
        _copies,
    ),
    "volunteer_rounds_committed_total": _counter(
        "Steps this volunteer's stages have closed.", lambda now: now.counters.rounds_committed
    ),
    "volunteer_rounds_restarted_total": _counter(
        "Restarted rounds.", lambda now: now.counters.rounds_restarted
    ),
    "volunteer_rounds_restarted_as_leader_total": Described(
        "counter",
        "Restarted rounds that this volunteer led, by reason.",
        ("reason",),
        lambda now: {(why,): float(n) for why, n in now.counters.restarts_led.items()},
    ),
    "volunteer_rerouted_microbatches_total": _counter(
        "Microbatches sent again to another replica.",
        lambda now: now.counters.rerouted_microbatches,
    ),
    "volunteer_replayed_microbatches_total": _counter(
        "Microbatches computed again because their holder left.",
        lambda now: now.counters.lost_microbatches,
    ),
    "volunteer_doubled_microbatches_total": _counter(
        "Microbatches counted twice; must stay 0.", lambda now: now.counters.doubled_microbatches
    ),
    "volunteer_refused_frames_total": Described(
        "counter",
        "Refused messages and connections.",
        ("reason",),
        lambda now: {(why,): float(n) for why, n in now.counters.refused_by_reason.items()},
    ),
    "volunteer_contributed_microbatches_total": _counter(
        "Microbatches in committed steps, over all sessions.", lambda now: now.credit.microbatches
    ),
    "volunteer_contributed_tokens_total": _counter(
        "Tokens in committed steps, over all sessions.", lambda now: now.credit.tokens
    ),
    "volunteer_audits_total": Described(
        "counter",
        "Contributions of others that this volunteer has audited, by result.",
        ("result",),
        _audits,
    ),
    "volunteer_auditable_contributions_total": _counter(
        "Contributions of others, in steps this volunteer has closed, that could be audited.",
        lambda now: now.audits.contributions if now.audits else 0,
    ),
    "volunteer_expelled_members": Described(
        "gauge",
        "Members expelled for the rest of the run, by what convicted them.",
        ("by",),
        lambda now: _counts(("contradiction", "charges", "inviter"), (o.by for o in now.expelled)),
    ),
    "volunteer_members_by_standing": Described(
        "gauge",
        "Members with anything to their name, by how far this volunteer trusts them.",
        ("standing",),
        lambda now: _counts((), (one.standing for one in now.trust)),
    ),
    "volunteer_uptime_seconds": _gauge("Time since the node started.", lambda now: now.uptime_s),
}


class _Collector:
    def __init__(self, now: Snapshot) -> None:
        self._now = now

    def collect(self) -> Iterator[Metric]:
        for name, metric in METRICS.items():
            make = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
            family = make(name.removesuffix("_total"), metric.words, labels=metric.labels)
            for labels, value in metric.read(self._now).items():
                family.add_metric([printable(label) for label in labels], value)
            yield family


def exposition(now: Snapshot) -> bytes:
    """Return a snapshot in Prometheus' text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(now))
    return generate_latest(registry)


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
    try:
        listeners = await trio.open_tcp_listeners(port, host=host)
    except OSError as error:
        raise UserError(
            f"metrics cannot be served on {host} port {port}: {error.strerror}",
            "choose another --metrics-port, or --metrics-host, or 0 for none",
            ExitCode.CONFIG,
        ) from error
    begun: dict[trio.CancelScope, None] = {}  # the oldest first

    async def answer(stream: trio.SocketStream) -> None:
        with trio.move_on_after(REQUEST_TIMEOUT_S) as scope:
            begun[scope] = None
            if len(begun) > MAX_SCRAPERS:  # a slow scraper must not delay others
                next(iter(begun)).cancel()
            try:
                await stream.send_all(_response(await _request_line(stream), snapshot))
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return
            finally:
                begun.pop(scope, None)

    task_status.started(listeners[0].socket.getsockname()[1])
    await trio.serve_listeners(answer, listeners)


async def _request_line(stream: trio.SocketStream) -> bytes:
    """Return the first line of a request whose head is complete; empty if it is not."""
    head = bytearray()
    while b"\r\n\r\n" not in head and len(head) <= MAX_REQUEST_BYTES:
        chunk = await stream.receive_some(4096)
        if not chunk:
            return b""
        head += chunk
    return bytes(head).partition(b"\r\n")[0]


def _response(request: bytes, snapshot: Callable[[], Snapshot]) -> bytes:
    words = request.split(b" ")
    if len(words) != 3 or words[0] != b"GET":
        return _reply("400 Bad Request", "text/plain", b"GET /metrics\n")
    if words[1].partition(b"?")[0] != b"/metrics":
        return _reply("404 Not Found", "text/plain", b"there is /metrics\n")
    try:
        body = exposition(snapshot())
    except Exception as error:  # a fault in describing the node must not end it
        return _reply("500 Internal Server Error", "text/plain", f"{error!r}\n".encode())
    return _reply("200 OK", CONTENT_TYPE_LATEST, body)


def _reply(status: str, kind: str, body: bytes) -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + body
