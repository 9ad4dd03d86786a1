"""Collects the facts of a report: from a running volunteer, or from what it left on this disk.

The manifest, earlier faults and the evidence are read from the disk in both cases. Nothing is
changed, so a report may be made at any time.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from client import __version__
from client.cli.logging.log_file import Line, read_lines
from client.cli.reach.contributors import kept_contributors
from client.cli.reach.home import Home
from client.cli.reporting.evidence import checked, kept_evidence
from client.cli.reporting.facts import (
    FaultFacts,
    HeldOutFacts,
    MemberFacts,
    PartFacts,
    Report,
    RunFacts,
    SampleFacts,
    StageFacts,
)
from client.cli.terminal.mixture_text import shares, times_read
from client.control.client import ControlClient
from client.control.snapshot import (
    AuditCounts,
    Counters,
    CreditView,
    EventView,
    ExpelledView,
    NetworkView,
    ReplicaView,
    Snapshot,
    StageView,
    WorkerView,
)
from client.control.updates import MAX_POINTS, HeldOutPoint, StepPoint
from client.errors import UserError
from client.store.checkpoints import CheckpointFolder
from client.store.curve import CurveFile
from client.store.identity import load_identity
from client.store.last_run import RunRecord
from client.store.persisted import DamagedFile, Persisted
from client.store.records import (
    COMPANY,
    AuditedMember,
    Companions,
    KeptAudits,
    KeptContributions,
    KeptCredit,
    KeptSample,
)
from client.store.swarms import SwarmStore
from client.train.reporting.event_sink import bits_per_byte
from client.ui.model.peers import peer_rows
from client.ui.model.record import Record
from client.ui.model.recovery import Incidents
from client.ui.model.stages import stage_rows
from client.ui.model.words import date
from protocol.amendments.book import Amendments, KeptAmendments
from protocol.ids import SwarmId
from protocol.invite import SwarmFile
from protocol.manifest import Manifest
from protocol.wire.envelope import Signer

MOST_READS = 32
"""Batches of events that are asked for: a node with news without end must not hold us."""
_BEGIN = re.compile(r" takes part in .* \(([0-9a-f]{12})\) as ", re.DOTALL)
"""Of the first line of a session in the log; a name within it cannot end it earlier."""
_KINDS = ("PeerChanged", "RecoveryEvent", "StepCommitted", "LogLine")


def from_node(home: Home, swarm: SwarmFile, node: ControlClient) -> Report:
    """Return the report of a swarm whose volunteer runs.

    Raises:
        ControlError: it does not answer, or has ended meanwhile.
    """
    now, record = node.status(), Record()
    record.snapshot, record.matches = now, node.matches()
    manifest = swarm.manifest
    events = _events(node)
    earlier = _logged(home, swarm.swarm, events[0].time if events else time.time())
    curve = node.curve()
    return Report(
        made=time.time(),
        version=__version__,
        source="running",
        state=f"{now.state}: {now.reason}",
        run=run_facts(swarm, now.step, now.steps),
        curve=curve.points,
        tokens_per_s=now.tokens_per_s,
        own_tokens_per_s=now.own_tokens_per_s,
        time_left_s=now.eta_s,
        stages=[
            StageFacts(
                stage=row.view.stage,
                layers=row.view.layers,
                version=row.view.version,
                serving=row.serving,
                words=row.why,
            )
            for row in stage_rows(record)
        ],
        members=[
            MemberFacts(
                peer=row.peer,
                name=now.names.get(row.peer, ""),
                state=row.state,
                stages=sorted(row.seats),
                microbatches_per_s=row.rate,
                standing=row.trust.standing if row.trust else "",
                fault=row.trust.fault if row.trust else "",
            )
            for row in peer_rows(now)
        ],
        contributors=now.contributors,
        credit=now.credit,
        faults=faults(manifest, [*earlier, *events]),
        counters=now.counters,
        audits=None if now.audits is None else _sum(one.audits for one in now.trust),
        expelled=now.expelled,
        held_out=held_out_facts(manifest, curve.held_out),
        samples=sample_facts(home, swarm.swarm),
    )


def from_disk(home: Home, swarm: SwarmFile) -> Report:
    """Return the report of a swarm whose volunteer does not run."""
    folders, manifest = home.folders, swarm.manifest
    curve = [StepPoint(*sample) for sample in CurveFile(folders.curve(swarm.swarm)).load()]
    versions = _versions(home, swarm.swarm)
    audits = Persisted(folders.audits(swarm.swarm), KeptAudits).peek()
    step = max([0, *versions.values(), *(p.step + 1 for p in curve[-1:])])
    amendments = Persisted(folders.amendments(swarm.swarm), KeptAmendments).peek()
    book = Amendments(manifest, swarm.swarm, amendments)
    return Report(
        made=time.time(),
        version=__version__,
        source="disk",
        state=_ending(home, swarm.swarm),
        run=run_facts(swarm, step, book.steps),
        curve=thinned(curve, MAX_POINTS),
        tokens_per_s=None,
        own_tokens_per_s=None,
        time_left_s=None,
        stages=_kept_stages(manifest, versions),
        members=_kept_members(home, swarm.swarm, audits),
        contributors=kept_contributors(home, swarm, step),
        credit=_kept_credit(home, swarm.swarm),
        faults=faults(manifest, _logged(home, swarm.swarm, time.time())),
        counters=None,
        audits=None if audits is None else _sum(map(_counts, audits.members)),
        expelled=_expelled(home, swarm.swarm),
        held_out=held_out_facts(manifest, _kept_held_out(home, swarm.swarm)),
        samples=sample_facts(home, swarm.swarm),
    )


def _kept_stages(manifest: Manifest, versions: Mapping[int, int]) -> list[StageFacts]:
    """Return the stages, each with the newest version on this disk."""
    return [
        StageFacts(
            stage=stage,
            layers=layers,
            version=versions.get(stage),
            serving=None,
            words="" if stage in versions else "no checkpoint of it lies here",
        )
        for stage, layers in enumerate(manifest.layers_per_stage)
    ]


def _kept_members(home: Home, swarm: SwarmId, audits: KeptAudits | None) -> list[MemberFacts]:
    """Return the members that this volunteer has met or audited."""
    judged = {one.peer: one for one in audits.members} if audits else {}
    own = _own_peer(home)
    kept = Persisted(home.folders.contributions(swarm), KeptContributions).peek()
    names = {} if kept is None else kept.names
    return [
        MemberFacts(
            peer=peer,
            name=names.get(peer, ""),
            state="you" if peer == own else "met",
            stages=[],
            microbatches_per_s=0.0,
            fault=judged[peer].fault if peer in judged else "",
        )
        for peer in sorted({*members_met(home, swarm), *judged})
    ]


def _kept_credit(home: Home, swarm: SwarmId) -> CreditView | None:
    """Return the volunteer's own work as it was kept."""
    credit = Persisted(home.folders.credit(swarm), KeptCredit).peek()
    if not credit:
        return None
    return CreditView(
        microbatches=credit.microbatches,
        tokens=credit.tokens,
        sent_bytes=credit.sent_bytes,
        since=credit.since,
    )


def _counts(member: AuditedMember) -> AuditCounts:
    """Return what audits of a member have found, as it is shown."""
    tally = member.tally
    return AuditCounts(agree=tally.agree, disagree=tally.disagree, unchecked=tally.unchecked)


def _kept_held_out(home: Home, swarm: SwarmId) -> list[HeldOutPoint]:
    """Return the newest points of the curve of held-out text."""
    kept = CurveFile(home.folders.held_out(swarm)).load()[-MAX_POINTS:]
    return [HeldOutPoint(one.step, one.wall, one.loss) for one in kept]


def held_out_facts(manifest: Manifest, curve: list[HeldOutPoint]) -> HeldOutFacts | None:
    """Return what is known of held-out text; None: the run has no evaluation."""
    terms = manifest.evaluated
    if terms is None:
        return None
    return HeldOutFacts(
        every=terms.every,
        tokens=terms.tokens,
        bits_per_nat=bits_per_byte(1.0, terms),
        curve=curve,
    )


def sample_facts(home: Home, swarm: SwarmId) -> list[SampleFacts]:
    """Return what this machine let the model write."""
    return [
        SampleFacts(version=one.version, prompt=one.prompt, text=one.text)
        for one in Persisted(home.folders.samples(swarm), list[KeptSample]).peek() or ()
    ]


def run_facts(swarm: SwarmFile, step: int, steps: int | None = None) -> RunFacts:
    """Return what is trained, after so many steps of ``steps``; None: of the manifest's."""
    manifest = swarm.manifest
    model, data, tokens = manifest.model, manifest.data, step * _tokens_per_step(manifest)
    samples = step * manifest.microbatches_per_step * manifest.sequences_per_microbatch
    parts = [
        PartFacts(name=part.name, share=share, epochs=epochs)
        for part, share, epochs in zip(
            data.mixed, shares(data.mixed), data.epochs(samples, model.context), strict=True
        )
    ]
    return RunFacts(
        swarm=swarm.swarm,
        swarm_name=manifest.name,
        purpose=manifest.purpose_words,
        founder=manifest.founder,
        created=float(manifest.created),
        architecture=model.architecture,
        layers=model.layers,
        width=model.width,
        context=model.context,
        vocab=model.vocab,
        parameters=model.parameter_count,
        data=data.name,
        data_bytes=data.size_bytes,
        epochs=times_read(data, tokens),
        parts=parts,
        step=step,
        steps=steps or manifest.steps,
        tokens=tokens,
        tokens_of=(steps or manifest.steps) * _tokens_per_step(manifest),
    )


def faults(manifest: Manifest, events: Iterable[EventView]) -> list[FaultFacts]:
    """Return the faults that events tell of, the newest first.

    Who served which stage at that time is not known any more, so a fault counts as repaired with
    the next step of the swarm.
    """
    found, then = Incidents(), _covered(manifest)
    found.learn(events, then, then, 0.0)
    return [
        FaultFacts(
            time=one.detected,
            step=one.step,
            words=one.title,
            stages=list(one.stages),
            in_order=one.in_order,
            repaired_after_s=None if one.resumed is None else one.resumed - one.detected,
            steps_lost=one.steps_lost,
            notes=one.notes,
        )
        for one in found.newest_first
    ]


def members_met(home: Home, swarm: SwarmId) -> tuple[str, ...]:
    """Return the ids of the members that this volunteer remembers, sorted."""
    known = SwarmStore(home.folders.swarms).load(swarm)
    company: Persisted[Companions]
    company = Persisted(home.folders.checkpoints(swarm) / COMPANY, Companions)
    found = {companion.peer for companion in company.peek() or ()}
    found |= {address.peer for address in known.peers if address.peer} if known else set()
    return tuple(sorted(found))


def thinned(points: Sequence[StepPoint], most: int) -> list[StepPoint]:
    """Return at most so many points, the newest among them."""
    if len(points) <= most:
        return list(points)
    return [points[(len(points) - 1) * i // (most - 1)] for i in range(most)]


def _tokens_per_step(manifest: Manifest) -> int:
    return manifest.tokens_per_microbatch * manifest.microbatches_per_step


def _events(node: ControlClient) -> list[EventView]:
    """Return the events that a node remembers."""
    found: list[EventView] = []
    for _ in range(MOST_READS):
        batch = node.events(found[-1].seq if found else 0)
        if not batch.events:
            break
        found += batch.events
    return found


def _logged(home: Home, swarm: SwarmId, until: float) -> list[EventView]:
    """Return a swarm's events in the log of this home before ``until`` (Unix seconds)."""
    alone = len(SwarmStore(home.folders.swarms).all()) == 1
    current, found = swarm[:12] if alone else "", list[EventView]()
    for line in _lines(home):
        if line.kind == "LogLine" and (begin := _BEGIN.search(line.words)):
            current = begin[1]
        if current == swarm[:12] and line.kind in _KINDS and line.time < until:
            found.append(_view(line))
    return found


def _lines(home: Home) -> Iterable[Line]:
    try:
        yield from read_lines(home.folders.logs)
    except OSError:
        return  # it is rotated meanwhile, or another user's


def _view(line: Line) -> EventView:
    level = line.level if line.level in ("debug", "warning", "error") else "info"
    return EventView(
        seq=0,
        time=line.time,
        kind=line.kind,
        topic="",
        level=level,  # type: ignore[arg-type]  # one of these four
        words=line.words,
        data=line.data,
    )


def _covered(manifest: Manifest) -> Snapshot:
    """Return a status in which somebody serves every stage, and nothing else is known."""
    somebody = [ReplicaView(peer="", version=0, state="serving", rate=0.0)]
    return Snapshot(
        version="",
        pid=0,
        peer="",
        swarm="",
        swarm_name="",
        state="training",
        reason="",
        step=0,
        steps=manifest.steps,
        loss=None,
        tokens_per_s=0.0,
        own_tokens_per_s=0.0,
        seats=[],
        stages=[
            StageView(stage=stage, layers=layers, version=0, replicas=somebody)
            for stage, layers in enumerate(manifest.layers_per_stage)
        ],
        peers=[],
        network=NetworkView(),
        worker=WorkerView(),
        counters=Counters(),
        rss_bytes=0,
        uptime_s=0.0,
    )


def _own_peer(home: Home) -> str:
    """Return this volunteer's id; empty: it has none, or its key cannot be used."""
    with suppress(UserError):
        seed = load_identity(home.folders.data)
        return Signer(seed).peer if seed else ""
    return ""


def _versions(home: Home, swarm: SwarmId) -> dict[int, int]:
    """Return the newest version of each stage on this disk."""
    try:
        entries = CheckpointFolder(home.folders.checkpoints(swarm)).entries()
    except OSError:
        return {}
    return {entry.stage: entry.version for entry in entries}  # sorted: the newest comes last


def _ending(home: Home, swarm: SwarmId) -> str:
    record = RunRecord(home.folders.data)
    run, ending = record.load(), record.ending()
    if run is not None and run.runs and run.swarm == swarm:
        return f"process {run.pid} is this volunteer and does not answer"
    if ending is None or ending.swarm != swarm:
        return "this volunteer does not run"
    if ending.exit_code is None:
        return f"this volunteer ended without a word; last seen {date(ending.time)}"
    return f"this volunteer ended {date(ending.time)}: {ending.words}"


def _expelled(home: Home, swarm: SwarmId) -> list[ExpelledView]:
    try:
        found = checked(kept_evidence(home.folders, swarm), swarm)
    except (DamagedFile, OSError):
        return []  # volunteer evidence says what is wrong with it
    return [
        ExpelledView(peer=one.peer, reason=one.fault, by=one.kind) for one in found if one.valid
    ]


def _sum(counts: Iterable[AuditCounts]) -> AuditCounts:
    known = list(counts)
    return AuditCounts(
        agree=sum(one.agree for one in known),
        disagree=sum(one.disagree for one in known),
        unchecked=sum(one.unchecked for one in known),
    )
