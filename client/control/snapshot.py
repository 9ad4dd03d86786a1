"""A node's state: the typed answer of the control socket's ``status``.

Plain data, no behaviour. Commands and the terminal interface read
nothing else of a node, so every field here is part of a stable interface: fields may be added,
``SCHEMA_VERSION`` rises when one changes its meaning or goes away.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

from client.events import Event
from protocol.effects import Level

SCHEMA_VERSION = 1
HOW_TO_UPDATE = "git pull and make install in its checkout, then start it anew"
WHEN_DONE = "volunteer export writes the model, volunteer sample tries it"
"""Advice to people when a run is complete."""

NodeState = Literal[
    "connecting",
    "matching",
    "fetching",
    "training",
    "waiting",
    "done",
    "paused",
    "stopping",
    "relaying",
]


class ReplicaView(Struct, frozen=True, kw_only=True):
    """A volunteer that holds a stage, as this node sees it."""

    peer: str
    version: int
    state: str
    rate: float
    """Microbatches per second, as measured by its partners where they did."""


class HeldOutView(Struct, frozen=True, kw_only=True):
    """The loss of one version on text that nobody trains on, computed by the swarm."""

    version: int
    loss: float
    """Mean of the tokens, nats."""
    bits_per_byte: float
    tokens: int
    """Held-out tokens that it is the mean of, the same for every version."""
    vouchers: int = 0
    """Members whose number is this one; 1: it is one member's claim; 0: from an earlier session."""
    claims: int = 0
    """Members that told a number of this version."""
    time: float = 0.0
    """When it became known here, Unix seconds."""


class StageView(Struct, frozen=True, kw_only=True):
    """One stage of the pipeline and who holds it."""

    stage: int
    layers: int
    version: int
    """Newest parameter version known to be committed."""
    replicas: list[ReplicaView] = field(default_factory=list)


class SeatView(Struct, frozen=True, kw_only=True):
    """A stage that this node holds or is about to hold."""

    stage: int
    version: int
    state: str
    seat: int = 0
    """0: its home; 1: its second stage."""
    members: list[str] = field(default_factory=list)
    """The replicas that made its version together."""
    electors: list[str] = field(default_factory=list)
    """The peers of which a majority decides who may close its next step."""
    waits_for: str = ""
    """The reason why it waits, in words; empty: it serves."""
    for_s: float = 0.0
    """Seconds for which it has waited for that, or has served."""
    staying: int | None = None
    """Replicas that would still serve it if this node left, at 0 the swarm would wait; None: this
    node does not serve it."""


class PeerView(Struct, frozen=True, kw_only=True):
    """A peer this node knows."""

    peer: str
    state: str
    """``connected`` or ``known``."""
    rtt_ms: float | None = None
    relay: str = ""
    """The member through which the link goes; empty: it is direct."""
    punched: bool = False
    """Whether it is direct because both sides dialled at once, through routers."""


class RelayView(Struct, frozen=True, kw_only=True):
    """How others reach this node, and whom it relays for."""

    through: list[str] = field(default_factory=list)
    """Members through which it is reached; empty: it is dialled."""
    rate_bytes_per_s: float = 0.0
    """Upload that it lends to members that cannot be dialled; 0: none now."""
    members: int = 0
    """Members that are reached through it."""
    circuits: int = 0
    passed_bytes: int = 0
    """Bytes passed on since it started."""


class LineView(Struct, frozen=True, kw_only=True):
    """A line of the run, trained by members apart from others."""

    members: list[str]
    version: int
    """Its newest."""


class AmendmentView(Struct, frozen=True, kw_only=True):
    """A change that the founder has made to the run."""

    number: int
    words: str
    """What it changes."""
    steps: int
    """Of the whole run, by it."""
    from_step: int
    """The step from which its learning rate holds; later in a stage that hears of it later."""


class Amended(Struct, frozen=True, kw_only=True):
    """Answer to ``amend``."""

    amendment: AmendmentView
    step: int
    """Steps that the run has done."""
    rates: list[tuple[int, float, float]]
    """Learning rates at some steps: the step, as it was to be, as it will be."""
    earliest: int
    """The first step for which its learning rate can hold."""
    signed: bool
    """False: it was only asked what would change."""


class ReachView(Struct, frozen=True, kw_only=True):
    """Whether members of other networks reach this node."""

    state: str = "unknown"
    """``reachable``, ``mapped`` (reachable by a port that the router maps), ``unreachable``,
    ``local`` (listens on this machine only), or ``unknown``."""
    words: str = ""
    next_step: str = ""
    """What would help; empty: nothing has to."""
    change: str = ""
    """The last change of this machine's network and what came of it, or the one under way; empty:
    there was none in the last hour."""


class NetworkView(Struct, frozen=True, kw_only=True):
    """Traffic of this node's sockets since it started."""

    sent_bytes: int = 0
    sent_tensor_bytes: int = 0
    """Of these, activations, gradients and shards."""
    received_bytes: int = 0
    links: int = 0


class TimeView(Struct, frozen=True, kw_only=True):
    """Shares of the time of the last steps; together 1."""

    computing: float
    averaging: float
    """Waiting for the others of a round of averaging."""
    waiting: float
    """For work: boundaries, gradients or leases of others."""
    resting: float
    """By the owner's limit of computing time."""


class WorkerView(Struct, frozen=True, kw_only=True):
    """A compute worker, a process."""

    pid: int | None = None
    """None: it starts."""
    rss_bytes: int = 0
    stage: int | None = None
    """The stage it computes; None: it stands by for the next one."""


class Counters(Struct, kw_only=True):
    """Events counted since the node started. ``doubled_microbatches`` must stay 0 (I1)."""

    lost_microbatches: int = 0
    """Ids whose gradient had to be replayed because its holder went away."""
    doubled_microbatches: int = 0
    """Ids that a committed step counted twice: a broken invariant if ever above 0."""
    rerouted_microbatches: int = 0
    """Forwards sent again to another replica."""
    refused_by_reason: dict[str, int] = field(default_factory=dict)
    """Frames and connections of others that were refused. Honest peers' frames are refused if they
    arrive after the step was closed or the seat given up."""
    rounds_committed: int = 0
    rounds_restarted: int = 0
    """Rounds of this volunteer's stages that were planned again."""
    restarts_led: dict[str, int] = field(default_factory=dict)
    """Those that it planned again itself as the leader, by reason."""
    worker_restarts: int = 0


class EventView(Struct, frozen=True, kw_only=True):
    """An event, in words for people and in ``data`` for programs."""

    seq: int
    """Rises by one per event of this node, from 1."""
    time: float
    """Unix seconds."""
    kind: str
    """Name of the event's type in ``client.events``."""
    topic: str
    level: Level
    words: str
    members: tuple[str, ...] = ()
    """Those that the words name by the ends of their ids."""
    data: dict[str, object] = field(default_factory=dict)

    @classmethod
    def of(cls, seq: int, time: float, event: Event) -> EventView:
        """Return the view of an event; ``time``: when it happened."""
        return cls(
            seq=seq,
            time=time,
            kind=type(event).__name__,
            topic=getattr(event, "about", event.topic),
            level=event.level,
            words=event.words,
            members=event.about_members,
            data=event.data(),
        )


class PauseView(Struct, frozen=True, kw_only=True):
    """A pause: the node holds no stage, by its owner's wish or limits."""

    reason: str
    """The reason, in words: ``you paused it``, ``on battery``."""
    until: float | None = None
    """Unix seconds at which it resumes by itself; None: on ``resume``, or with its cause."""
    since: float = 0.0
    """Unix seconds."""
    by_owner: bool = True
    """False: a limit's, which ends with its cause and not on ``resume``."""


class LimitsView(Struct, frozen=True, kw_only=True):
    """The owner's limits; 0: no limit."""

    threads: int = 0
    threads_now: int = 0
    """Threads that a stage is computed with; 0: not measured yet."""
    compute_share: int = 0
    """Percentage of the time."""
    memory_bytes: int = 0
    vram_share: int = 0
    """Percentage of the GPU's memory."""
    upload_bytes_per_s: int = 0
    download_bytes_per_s: int = 0
    daily_bytes: int = 0
    """Sent and received together."""
    used_bytes: int = 0
    """Today, whether or not there is a quota."""
    device: str = ""
    """Where it computes, as the owner chose: ``auto``, ``cpu``, ``cuda:1``; empty: not known."""
    when: list[str] = field(default_factory=list)
    """Conditions for computing: ``idle only``, ``not on battery``, ``22:00-07:00``."""


class ChargeView(Struct, frozen=True, kw_only=True):
    """A member that others of its stage charge, who are no majority."""

    stage: int
    peer: str
    authors: list[str]


class AuditCounts(Struct, frozen=True, kw_only=True):
    """Results of this volunteer's audits of others."""

    agree: int = 0
    disagree: int = 0
    unchecked: int = 0
    """Could not be checked: the member had gone, or this machine could not compute it."""

    @property
    def drawn(self) -> int:
        """All of them."""
        return self.agree + self.disagree + self.unchecked


class AuditsView(Struct, frozen=True, kw_only=True):
    """Audits by this volunteer; what others found is in ``open`` and in ``expelled``."""

    contributions: int = 0
    """Of others, in steps that were closed here since it started."""
    results: AuditCounts = field(default_factory=AuditCounts)
    """Since it started."""
    open: list[ChargeView] = field(default_factory=list)


class ExpelledView(Struct, frozen=True, kw_only=True):
    """A member that was expelled from the swarm for the rest of the run."""

    peer: str
    reason: str
    """The fault shown by the evidence, in one sentence."""
    by: Literal["contradiction", "charges", "inviter"] = "contradiction"
    """Its own signatures; a majority of its stage; the member that answers for it. Of the last one
    ``volunteer status members`` has the details, of the others ``volunteer evidence``."""


class TrustView(Struct, frozen=True, kw_only=True):
    """Why this volunteer trusts another member, and how far."""

    peer: str
    standing: Literal["proven", "probation", "unproven", "aside", "charged", "expelled"]
    """``proven``: a step that was closed here contains its work. ``probation``: none does yet, and
    of others one does. ``unproven``: nobody has proven anything here yet. ``aside``: it obstructs
    the run, and is left out for a while. ``charged``: members of its stage, who are no majority,
    charge it with lies."""
    words: str
    """The reason, and what is missing."""
    audits: AuditCounts = field(default_factory=AuditCounts)
    """Our audits of it, since this volunteer started."""
    fault: str = ""
    """The newest audit of it that did not agree; empty: there was none."""
    invited_by: list[str] = field(default_factory=list)
    """The members that answer for it, the founder first and its inviter last; empty where members
    do not vouch for each other."""


class CreditView(Struct, frozen=True, kw_only=True):
    """This volunteer's work for the swarm, over all its sessions."""

    microbatches: int = 0
    """Of ours in committed steps; each stage counts for itself."""
    tokens: int = 0


class ContributorView(Struct, frozen=True, kw_only=True):
    """A member's contribution to the steps that this volunteer has closed."""

    peer: str
    name: str = ""
    """As it calls itself; empty: it has no name."""
    microbatches: int = 0
    """In all stages that it has held; each stage counts for itself."""
    tokens: int = 0
    """Of these microbatches."""
    share: float = 0.0
    """Of all that was counted, from 0 to 1."""


class InviteView(Struct, frozen=True, kw_only=True):
    """A fresh invite to the swarm. It is a secret, which observers do not get."""

    swarm: str
    swarm_name: str
    invite: str
    """``volunteer:...``, with the members to dial."""
    file: str = ""
    """Contents of a ``.swarm`` file that does the same."""
    members: list[str] = field(default_factory=list)
    """Addresses to dial."""
    private: bool = False
    notes: list[str] = field(default_factory=list)
    """Notes for a person who shares the invite."""


class InvitedMember(Struct, frozen=True, kw_only=True):
    """A member of a swarm that is entered by invitation."""

    peer: str
    invited_by: str
    """Empty: the founder."""
    depth: int
    """Invitations between the founder and it."""
    linked: bool
    ours: bool
    """Whether we may expel it: we have invited it, or one of its inviters."""
    expelled_by: str = ""
    """Empty: nobody has expelled it."""
    reason: str = ""


class StageMatch(Struct, frozen=True, kw_only=True):
    """One stage, in the order in which we want them."""

    stage: int
    steward: str
    """The member that decides who holds it."""
    shared_level: float
    """Microbatches per second of its replicas together, after dual homing."""
    redundancy: int
    """Replicas it should have (r)."""
    obstacle: str
    """The reason why a proposal is useless; empty: it is not."""
    stay: str
    """The reason why a move there from our home would not pay; empty: it would, or we have no
    home."""


class PayingMove(Struct, frozen=True, kw_only=True):
    """A move that would pay and that both stages would agree to: a blocking pair."""

    home: int
    to: int


class MatchesView(Struct, frozen=True, kw_only=True):
    """Why this node has its stages."""

    state: str
    """State of our first seat: ``free``, ``proposed``, ``held``, ``fetching`` or ``serving``."""
    asked: int | None = None
    """The stage that it holds or asks for a place."""
    stages: list[StageMatch]
    """Stages with a steward, the most wanted first."""
    paying_moves: list[PayingMove]
    decides: list[int]
    """Stages that we are the steward of."""


class Snapshot(Struct, frozen=True, kw_only=True):
    """One moment of one node. Rates are averages over the last few steps."""

    version: str
    """Version of the client software."""
    pid: int
    peer: str
    swarm: str
    swarm_name: str
    state: NodeState
    reason: str
    """The reason for the node's state, in one sentence."""
    step: int
    steps: int
    loss: float | None
    """Mean training loss of the last committed step, nats per token."""
    loss_vouchers: int = 0
    """Replicas of the last stage that vouch for the loss; 0: this node's own loss, or nobody's."""
    tokens_per_s: float
    eta_s: float | None = None
    """About how many seconds of training are left, at the speed of the last steps; None: nothing is
    known of that now."""
    held_out: HeldOutView | None = None
    """Of the newest version that was evaluated; None: of none."""
    own_tokens_per_s: float
    """Our part of it: the mean of our shares of the stages, times the whole."""
    time_spent: TimeView | None = None
    """None: this node trains nothing now."""
    seats: list[SeatView]
    stages: list[StageView]
    peers: list[PeerView]
    network: NetworkView
    counters: Counters
    rss_bytes: int
    uptime_s: float
    addresses: list[str] = field(default_factory=list)
    """Multiaddresses others can reach this node at, peer id included."""
    workers: list[WorkerView] = field(default_factory=list)
    """One per held stage, and one that stands by."""
    paused: PauseView | None = None
    limits: LimitsView = field(default_factory=LimitsView)
    credit: CreditView = field(default_factory=CreditView)
    last_error: str = ""
    """The newest error of this node that is not over; empty: there is none."""
    last_error_at: float | None = None
    """When it was, Unix seconds."""
    started: bool = True
    """Whether it was measured and has entered the swarm, or is paused; before that its start may
    fail."""
    aggregation: str = "sum"
    """Name of the rule by which a stage's volunteers average their gradients."""
    amendments: list[AmendmentView] = field(default_factory=list)
    """The founder's changes of the run, in order."""
    beside: list[LineView] = field(default_factory=list)
    """Other lines of this run that members train apart from this volunteer: one of all stands, and
    the others go over to it."""
    given_up: EventView | None = None
    """Steps that this volunteer had made apart from others in this session, and has given up where
    both met; None: none."""
    newer: str = ""
    """How many members report a newer program than this one; empty: none does."""
    expelled: list[ExpelledView] = field(default_factory=list)
    """Those whose evidence is kept, the last convicted last."""
    audits: AuditsView | None = None
    """None: the run has no audits."""
    trust: list[TrustView] = field(default_factory=list)
    """The members that hold a stage, were audited, vouched for, charged or expelled."""
    certified_version: int = 0
    """The newest version of the run that its members certify, by signatures that lead from the
    founder to it; 0: there is none."""
    reach: ReachView = field(default_factory=ReachView)
    certified_links: int = 0
    """How many links lead to it."""
    relay: RelayView = field(default_factory=RelayView)
    purpose: str = ""
    """What the model is for, in its founder's words; empty: it does not say."""
    names: dict[str, str] = field(default_factory=dict)
    """Names of members, this one included, by peer id; anybody may choose any."""
    contributors: list[ContributorView] = field(default_factory=list)
    """Those with the most work, this one included."""
    matches: MatchesView | None = None
    """A few seconds old; None: the matching has not begun, for this machine is being measured."""
    members: list[InvitedMember] | None = None
    """Who belongs to a swarm that is entered by invitation, as far as this node has met them, each
    below its inviter; None: whoever has an invite belongs to it."""
    schema_version: int = SCHEMA_VERSION
