"""Small made-up snapshots, stages and events for tests of single views."""

from client.control.snapshot import (
    AuditCounts,
    AuditsView,
    ContributorView,
    Counters,
    EventView,
    ExpelledView,
    MatchesView,
    NetworkView,
    PeerView,
    ReplicaView,
    SeatView,
    Snapshot,
    StageMatch,
    StageView,
    TrustView,
    WorkerView,
)
from client.control.updates import Update
from client.views.record import Record
from tests.support.control_fakes import example_matches, example_snapshot, example_stage

ME, ANNA, BORIS, CARLA = (
    f"12D3KooWexample{name}" for name in ("000you", "00anna", "0boris", "0carla")
)
NOW = 1_800_000_000.0


def replica(peer: str, state: str = "serving", rate: float = 10.0, version: int = 5) -> ReplicaView:
    return ReplicaView(peer=peer, version=version, state=state, rate=rate)


def stage(number: int, *replicas: ReplicaView) -> StageView:
    return StageView(stage=number, layers=2, version=5, replicas=list(replicas))


def snapshot(**changes: object) -> Snapshot:
    """Return a snapshot of a volunteer that serves stage 0 beside Anna; Boris serves stage 1."""
    fields: dict[str, object] = {
        "peer": ME,
        "reason": "stage 0, 3/16 counted here",
        "step": 5,
        "tokens_per_s": 1000.0,
        "own_tokens_per_s": 250.0,
        "seats": [SeatView(stage=0, version=5, state="serving", staying=1)],
        "stages": [stage(0, replica(ME), replica(ANNA)), stage(1, replica(BORIS))],
        "peers": [
            PeerView(peer=ANNA, state="connected", rtt_ms=20.0),
            PeerView(peer=BORIS, state="connected", rtt_ms=5.0),
            PeerView(peer=CARLA, state="known"),
        ],
        "network": NetworkView(sent_bytes=1000, received_bytes=2000, links=2),
        "workers": [WorkerView(pid=8, rss_bytes=10**9)],
        "counters": Counters(rounds_committed=5),
        "rss_bytes": 10**8,
        "uptime_s": 75.0,
        "addresses": ["/ip4/192.0.2.7/tcp/4001/p2p/" + ME],
    }
    return example_snapshot(**{**fields, **changes})


def judged(**changes: object) -> Snapshot:
    """Return the snapshot of an audited run: Anna is proven, Carla new, Boris was expelled."""
    lies = (
        f"{BORIS[-6:]} contributed something else than it had signed (step 41; found by 2 members "
        "of stage 1)"
    )
    fields: dict[str, object] = {
        "stages": [stage(0, replica(ME), replica(ANNA)), stage(1, replica(CARLA, rate=0.0))],
        "peers": [
            PeerView(peer=ANNA, state="connected", rtt_ms=20.0),
            PeerView(peer=CARLA, state="connected", rtt_ms=31.0),
        ],
        "audits": AuditsView(
            contributions=412,
            results=AuditCounts(agree=11, disagree=1, unchecked=1),
        ),
        "expelled": [ExpelledView(peer=BORIS, reason=lies, by="charges")],
        "trust": [
            TrustView(
                peer=BORIS,
                standing="expelled",
                words=lies,
                audits=AuditCounts(disagree=1),
                fault="stage 1, step 41: is not the one that it has signed",
            ),
            TrustView(
                peer=ANNA,
                standing="proven",
                words="steps that were closed here contain its work",
                audits=AuditCounts(agree=11, unchecked=1),
                invited_by=[ME, BORIS, CARLA],
            ),
            TrustView(
                peer=CARLA,
                standing="probation",
                words="no step that was closed here contains its work; one is enough",
            ),
        ],
    }
    return snapshot(**{**fields, **changes})


def people(**changes: object) -> Update:
    """Return an update in which members have names, two of them the same, and have contributed."""
    rows = [
        ContributorView(peer=ANNA, name="Anna's PC", microbatches=420, tokens=215_040, share=0.42),
        ContributorView(peer=ME, name="Boris", microbatches=300, tokens=153_600, share=0.3),
        ContributorView(peer=BORIS, name="Boris", microbatches=96, tokens=49_152, share=0.1),
    ]
    named = {one.peer: one.name for one in rows}
    return update(1, **{"names": named, "contributors": rows, **changes})


def event(
    seq: int, words: str = "something", kind: str = "LogLine", **changes: object
) -> EventView:
    """Return one event, a second after the one before."""
    fields: dict[str, object] = {
        "seq": seq,
        "time": NOW + seq,
        "kind": kind,
        "topic": "swarm",
        "level": "info",
        "words": words,
    }
    return EventView(**{**fields, **changes})  # type: ignore[arg-type]


def step(seq: int, number: int, loss: float = 2.0) -> EventView:
    data: dict[str, object] = {"step": number, "loss": loss, "tokens": 100 * number}
    return event(seq, f"step {number}: loss {loss}", "StepCommitted", data=data)


def evaluated(seq: int, version: int, loss: float) -> EventView:
    """Return the event of a loss on held-out text."""
    data: dict[str, object] = {"version": version, "loss": loss, "vouchers": 3, "claims": 3}
    return event(seq, f"version {version}: held-out loss {loss}", "VersionEvaluated", data=data)


def update(second: int, *events: EventView, **changes: object) -> Update:
    """Return an update at a second; ``changes`` are the snapshot's."""
    return Update(time=NOW + second, snapshot=snapshot(**changes), events=list(events))


def stage_match(number: int, **changes: object) -> StageMatch:
    usual = {"shared_level": 10.0 + number, "obstacle": "", "stay": ""}
    return example_stage(**{"stage": number, **usual, **changes})


def matching(*stages: StageMatch, **changes: object) -> MatchesView:
    """Return the matching with our home at stage 0."""
    usual = dict[str, object](paying_moves=[], decides=[])
    return example_matches(**{"stages": list(stages), **usual, **changes})


def recorded_from(*updates: Update) -> Record:
    """Return a record that has seen these updates."""
    record = Record()
    for one in updates:
        record.apply(one)
    return record
