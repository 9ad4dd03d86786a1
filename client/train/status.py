"""The node's answer to ``status``: one snapshot, put together from what the parts hold."""

from __future__ import annotations

import os
import time

import psutil

from client import __version__
from client.control.snapshot import (
    Counters,
    EventView,
    NetworkView,
    NodeState,
    PeerView,
    Replica,
    SeatView,
    Snapshot,
    StageView,
    WorkerState,
    WorkerView,
)
from client.events import Entry
from client.train.engine import Engine
from client.train.staging import Staging

RECENT_EVENTS = 20


def take_snapshot(engine: Engine, staging: Staging, started: float, stopping: bool) -> Snapshot:
    """Describe the node now; ``started`` is its monotonic start time."""
    manifest, network = engine.manifest, engine.network.statistics()
    state, reason = _state(engine, staging, stopping)
    progress, pace = engine.news.progress, engine.news.pace.per_s()
    per_step = manifest.tokens_per_microbatch * manifest.microbatches_per_step
    own_share = _own_share(engine, staging)
    return Snapshot(
        version=__version__,
        pid=os.getpid(),
        peer=engine.signer.peer,
        swarm=engine.swarm,
        swarm_name=manifest.name,
        state=state,
        reason=reason,
        step=progress.tokens // per_step if progress else 0,
        steps=manifest.steps,
        loss=progress.loss if progress else None,
        tokens_per_s=pace,
        own_tokens_per_s=pace * own_share,
        seats=[
            SeatView(stage=seat.stage, version=seat.version, state=seat.state)
            for seat in staging.seats()
        ],
        stages=_stages(engine),
        peers=_peers(engine),
        network=NetworkView(
            sent_bytes=network.bytes_out,
            received_bytes=network.bytes_in,
            links=len(network.peers),
        ),
        worker=_worker(staging),
        counters=_counters(engine, staging),
        rss_bytes=psutil.Process().memory_info().rss,
        uptime_s=time.monotonic() - started,
        addresses=list(engine.network.addresses),
        events=[EventView.of(e) for e in _recent(engine)],
    )


def _recent(engine: Engine) -> list[Entry]:
    return list(engine.news.log.since(max(0, engine.news.log.last_seq - RECENT_EVENTS)).entries)


def _state(engine: Engine, staging: Staging, stopping: bool) -> tuple[NodeState, str]:
    driver = staging.driver
    if stopping:
        return "stopping", "handing off and saving"
    if driver is None:
        state: NodeState = "matching" if staging.stage is None else "fetching"
        return state, staging.phase
    seat = driver.seat
    if seat.finished:
        return "done", "the run is complete; serving its last version"
    if not seat.serving:
        return "fetching", staging.phase
    if not engine.started or staging.view.empty_stages():
        return "waiting", seat.why()
    return "training", seat.why()


def _stages(engine: Engine) -> list[StageView]:
    roster, manifest = engine.membership.roster, engine.manifest
    result = []
    for stage, layers in enumerate(manifest.layers_per_stage):
        replicas = roster.replicas(stage)
        newest = max((r.seat.version for r in replicas if r.seat.state == "serving"), default=0)
        views = [
            Replica(
                peer=r.peer,
                version=r.seat.version,
                state="suspect" if r.suspect else r.seat.state,
                rate=r.seat.rate,
            )
            for r in replicas
        ]
        result.append(StageView(stage=stage, layers=layers, version=newest, replicas=views))
    return result


def _peers(engine: Engine) -> list[PeerView]:
    rtt = engine.network.statistics().rtt_s
    views = []
    for member in engine.membership.roster.members():
        if member.peer == engine.signer.peer:
            continue
        state = "suspect" if member.suspect else "connected" if member.linked else "known"
        seconds = rtt.get(member.peer)
        milliseconds = None if seconds is None else 1000 * seconds
        views.append(PeerView(peer=member.peer, state=state, rtt_ms=milliseconds))
    return views


def _worker(staging: Staging) -> WorkerView:
    worker = staging.worker
    if worker is None:
        state: WorkerState = "restarting" if staging.worker_restarts else "starting"
        return WorkerView(state=state, restarts=staging.worker_restarts)
    try:
        rss = psutil.Process(worker.pid).memory_info().rss
    except psutil.Error:
        rss = 0
    return WorkerView(
        state="running", pid=worker.pid, restarts=staging.worker_restarts, rss_bytes=rss
    )


def _counters(engine: Engine, staging: Staging) -> Counters:
    driver = staging.driver
    return Counters(
        lost_microbatches=staging.replayed,
        doubled_microbatches=staging.miscounted + (driver.miscounted if driver else 0),
        rerouted_microbatches=staging.rerouted,
        refused_frames=sum(engine.penalties.values())
        + sum(engine.network.statistics().refused.values()),
        rounds_committed=staging.rounds,
        rounds_restarted=staging.restarted,
    )


def _own_share(engine: Engine, staging: Staging) -> float:
    """Our share of the stage's work, by replica count until rates are known."""
    if staging.stage is None:
        return 0.0
    serving = engine.membership.roster.serving(staging.stage)
    rates = {r.peer: r.seat.rate for r in serving}
    total = sum(rates.values())
    if total <= 0:
        return 1.0 / max(1, len(rates))
    return rates.get(engine.signer.peer, 0.0) / total
