"""The node's answer to ``status``: one snapshot of all parts of the node."""

import os
import time
from collections import Counter
from collections.abc import Mapping

import psutil
from msgspec import structs

from client import __version__
from client.compute.process import Worker
from client.config import Settings
from client.control.amended import amendment_views
from client.control.contributors import contributors_view
from client.control.snapshot import (
    AuditsView,
    ChargeView,
    Counters,
    CreditView,
    HeldOutView,
    LimitsView,
    LineView,
    NetworkView,
    NodeState,
    PauseView,
    PeerView,
    ReplicaView,
    SeatView,
    Snapshot,
    StageView,
    WorkerView,
)
from client.limits.decision import when_words
from client.node.trust import audit_counts, expelled, members_of, trust_of
from client.train.engine import Engine
from client.train.reporting.event_sink import bits_per_byte
from client.train.stage.held_stages import HeldStages

GONE_NAMED = 64
"""Members that have gone and whose names are told: events still speak of them."""


def take_snapshot(
    engine: Engine,
    held_stages: HeldStages,
    started: float,
    stopping: bool,
    paused: PauseView | None = None,
) -> Snapshot:
    """Return a snapshot of a node that was started at these monotonic seconds."""
    manifest, network = engine.manifest, engine.network.statistics()
    state, reason = _state(engine, held_stages, stopping, paused)
    workers, stages = _workers(held_stages), _stages(engine)
    step, sink = _step(engine, stages), engine.event_sink
    pace = 0.0 if state == "done" else sink.pace.per_s()
    error = sink.last_error
    waypoint = engine.waypoints.machine.newest
    return Snapshot(
        version=__version__,
        pid=os.getpid(),
        peer=engine.signer.peer,
        swarm=engine.swarm,
        swarm_name=manifest.name,
        state=state,
        reason=reason,
        step=step,
        steps=engine.amending.book.steps,
        aggregation=manifest.aggregation,
        loss=sink.loss,
        loss_vouchers=sink.vouchers,
        tokens_per_s=pace,
        eta_s=_eta_s(engine, step, pace) if state == "training" else None,
        held_out=_held_out(engine),
        own_tokens_per_s=pace * _own_share(engine, held_stages),
        time_spent=held_stages.time_spent.shares(engine.now()) if state == "training" else None,
        seats=_seats(engine, held_stages),
        stages=stages,
        peers=_peers(engine),
        network=NetworkView(
            sent_bytes=network.bytes_out,
            sent_tensor_bytes=network.tensor_bytes_out,
            received_bytes=network.bytes_in,
            links=len(network.peers),
        ),
        workers=workers,
        counters=_counters(held_stages, network.refused),
        rss_bytes=psutil.Process().memory_info().rss,
        uptime_s=time.monotonic() - started,
        addresses=engine.reach.advertised(engine.network.addresses),
        reach=engine.reach.summary(),
        paused=paused,
        last_error=error[0] if error else "",
        last_error_at=error[1] if error else None,
        audits=_audits(held_stages),
        trust=trust_of(engine, held_stages),
        amendments=amendment_views(engine.amending.book),
        beside=_beside(engine),
        given_up=sink.given_up,
        newer=engine.handshake.newer.words,
        expelled=expelled(engine),
        certified_version=0 if waypoint is None else waypoint.version,
        certified_links=len(engine.waypoints.machine.chain),
        purpose=manifest.purpose,
        names=_names(engine),
        members=members_of(engine),
        credit=CreditView(
            microbatches=engine.contributions.own,
            tokens=engine.contributions.own * manifest.tokens_per_microbatch,
        ),
        contributors=contributors_view(
            engine.contributions.counts(), engine.contributions.name, manifest
        ),
    )


def _beside(engine: Engine) -> list[LineView]:
    if engine.history is None:
        return []
    found = engine.history.machine.lines.beside()
    return [LineView(members=sorted(line.members), version=line.steps) for line in found]


def _names(engine: Engine) -> dict[str, str]:
    """Return the names of the members that are here, and of some that were."""
    names = engine.contributions.names(len(engine.membership.roster) + GONE_NAMED)
    return {str(peer): name for peer, name in names.items()}


def _eta_s(engine: Engine, step: int, tokens_per_s: float) -> float | None:
    """Return about how long the rest of the run takes at this speed; None: not known yet."""
    left = (engine.amending.book.steps - step) * engine.manifest.tokens_per_step
    return left / tokens_per_s if tokens_per_s > 0 else None


def _held_out(engine: Engine) -> HeldOutView | None:
    """Return the newest loss on held-out text, of an earlier session if this one has heard none."""
    sink, terms = engine.event_sink, engine.manifest.evaluation
    newest = sink.held_out_curve.points(1)
    if terms is None or not newest:
        return None
    known = sink.held_out
    return HeldOutView(
        version=newest[0].step,
        loss=newest[0].loss,
        bits_per_byte=bits_per_byte(newest[0].loss, terms),
        tokens=terms.tokens,
        vouchers=known.vouchers if known else 0,
        claims=known.claims if known else 0,
        time=newest[0].time,
    )


def _audits(held_stages: HeldStages) -> AuditsView | None:
    """Return what our audits came to; None: the run has none."""
    if (terms := held_stages.audits) is None:
        return None
    return AuditsView(
        contributions=terms.contributions,
        results=audit_counts(terms.records.values()),
        open=[
            ChargeView(stage=stage, peer=peer, authors=[*authors])
            for (stage, peer), authors in terms.open_charges().items()
        ],
    )


def limits_view(settings: Settings, used_bytes: int, threads: int) -> LimitsView:
    """Return the owner's limits (``settings``), and what is used of this machine."""
    return LimitsView(
        threads=settings.threads,
        threads_now=threads,
        compute_share=settings.compute_share % 100,
        memory_bytes=settings.memory_limit_bytes,
        vram_share=settings.vram_share % 100,
        upload_bytes_per_s=settings.upload_limit_bytes_per_s,
        download_bytes_per_s=settings.download_limit_bytes_per_s,
        daily_bytes=settings.daily_quota_bytes,
        used_bytes=used_bytes,
        device=settings.device,
        when=when_words(settings),
    )


def _step(engine: Engine, stages: list[StageView]) -> int:
    """Return the run's step: the newest of what every stage serves, our disk holds and the last
    stage told of."""
    progress = engine.event_sink.progress
    closed = min((stage.version for stage in stages), default=0)
    on_disk = engine.history.version() if engine.history else 0
    told = progress.tokens // engine.manifest.tokens_per_step if progress else 0
    return min(engine.amending.book.steps, max(closed, on_disk, told))


def _state(
    engine: Engine, held_stages: HeldStages, stopping: bool, paused: PauseView | None
) -> tuple[NodeState, str]:
    if stopping:
        return "stopping", held_stages.draining_words
    if paused is not None:
        words = f"; {held_stages.draining_words}" if held_stages.held else ""
        return "paused", paused.reason + words
    if not held_stages.held and (off := engine.compare_clocks()):
        return "waiting", off
    starved, served = held_stages.leaves.starved, engine.membership.roster.serving(0)
    if (problem := held_stages.leaves.problem) and (starved or not served):
        return "waiting", problem
    if engine.history is not None and (waits := engine.history.waiting()):
        return "waiting", waits
    seats = [driver.seat for driver in held_stages.drivers()]
    serving = [seat for seat in seats if seat.serving]
    if not serving:
        state: NodeState = "fetching" if held_stages.held else "matching"
        return state, held_stages.phase if held_stages.held else _waits_for(
            engine
        ) or held_stages.phase
    if all(seat.finished for seat in serving):
        return "done", "the run is complete; serving its last version"
    if held_stages.view.empty_stages():
        return "waiting", _waits_for(engine) or held_stages.phase
    return "training", held_stages.phase


def _waits_for(engine: Engine) -> str:
    """Describe for whom the swarm waits; empty: every stage is covered."""
    return engine.matching.waits_for if engine.matching else ""


def _seats(engine: Engine, held_stages: HeldStages) -> list[SeatView]:
    me, view, now = engine.signer.peer, held_stages.view, engine.now()
    seats = []
    for stage, held in held_stages.held.items():
        said, quorum = held.status(), None if held.driver is None else held.driver.seat.quorum
        serves = me in view.replicas()[stage]
        seats.append(
            SeatView(
                stage=stage,
                version=said.version if said else 0,
                state=said.state if said else "fetching",
                seat=said.seat if said else engine.seat_of(stage),
                members=sorted(quorum.roll) if quorum else [],
                electors=sorted(quorum.electors) if quorum else [],
                waits_for=held.machine.waits_for,
                for_s=max(0.0, now - held.machine.since),
                staying=len(view.staying(stage, me)) if serves else None,
            )
        )
    return seats


def _stages(engine: Engine) -> list[StageView]:
    roster, manifest = engine.membership.roster, engine.manifest
    result = []
    for stage, layers in enumerate(manifest.layers_per_stage):
        replicas = roster.replicas(stage)
        newest = max((r.seat.version for r in replicas if r.seat.state == "serving"), default=0)
        views = [
            ReplicaView(
                peer=r.peer,
                version=r.seat.version,
                state=r.seat.state,
                rate=r.seat.rate,
            )
            for r in replicas
        ]
        result.append(StageView(stage=stage, layers=layers, version=newest, replicas=views))
    return result


def _peers(engine: Engine) -> list[PeerView]:
    working = engine.network.working()
    views = []
    for member in engine.membership.roster.members():
        if member.peer == engine.signer.peer:
            continue
        link = working.get(member.peer)
        rtt_s = None if link is None else link.session.rtt_s
        views.append(
            PeerView(
                peer=member.peer,
                state="connected" if member.linked else "known",
                rtt_ms=None if rtt_s is None else 1000 * rtt_s,
                relay="" if link is None else link.relay or "",
                punched=link is not None and link.punched,
            )
        )
    return views


def _workers(held_stages: HeldStages) -> list[WorkerView]:
    """Every worker, those of held stages first; one that starts if there is none."""
    views = [_worker(held.worker, held.stage) for held in held_stages.held.values()]
    idle = held_stages.workers.idle
    if not held_stages.closed and (idle is not None or not views):
        views.append(_worker(idle, None))
    return views


def _worker(worker: Worker | None, stage: int | None) -> WorkerView:
    if worker is None:
        return WorkerView(stage=stage)
    return WorkerView(stage=stage, pid=worker.pid, rss_bytes=_rss(worker.pid))


def _rss(pid: int) -> int:
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0


def _counters(held_stages: HeldStages, refused: Mapping[str, int]) -> Counters:
    seen = held_stages.counting.seen
    restarts = Counter(seen.restarts_led)
    for driver in held_stages.drivers():
        restarts.update(driver.seat.leader.restarts)
    return structs.replace(seen, refused_by_reason=dict(refused), restarts_led=dict(restarts))


def _own_share(engine: Engine, held_stages: HeldStages) -> float:
    """Our share of the work of the whole model: the mean of our shares of its stages."""
    shares = (_share_of(engine, stage) for stage in held_stages.held)
    return sum(shares) / engine.manifest.stage_count


def _share_of(engine: Engine, stage: int) -> float:
    """Our share of a stage's work, by replica count until rates are known."""
    serving = engine.membership.roster.serving(stage)
    if all(replica.peer != engine.signer.peer for replica in serving):
        return 0.0
    rates = {r.peer: r.seat.rate for r in serving}
    total = sum(rates.values())
    if total <= 0:
        return 1.0 / max(1, len(rates))
    return rates.get(engine.signer.peer, 0.0) / total
