"""All messages between two peers, typed and bounded.

A message is the header of a frame (framing.py); tensors and chunks follow it as the frame's
payload. Parsing checks lengths and ranges, so state machines see only valid values. The meaning of
a message is documented in the machine that receives it.
"""

from collections.abc import Mapping
from functools import reduce
from operator import or_
from typing import Annotated, ClassVar, Final, Literal

import msgspec
from msgspec import Meta, Struct

from protocol import limits
from protocol.wire.canonical import Format
from protocol.wire.fields import (
    Attempt,
    Bitmap,
    Count,
    Envelope,
    Era,
    Finite,
    Hash32,
    MicrobatchId,
    PeerText,
    Reason,
    SegmentIndex,
    Signature,
    SquaredNorm,
    StageIndex,
    StateHash,
    StepIndex,
    SwarmText,
)
from protocol.wire.letters import ToSteward, ToVolunteer
from protocol.wire.parts import (
    Decree,
    DigestEntry,
    Electors,
    PlanMember,
    Promises,
    SeatStatus,
    Signatures,
)
from protocol.wire.route import Route


class Message(Struct, frozen=True, tag=True, array_like=True, forbid_unknown_fields=True):
    """Base of every message; ``array_like`` keeps headers small and field order is the format."""

    route: ClassVar[Route]

    @property
    def addressed_stage(self) -> int | None:
        """The stage whose seat the message is for; None if it is for no seat.

        A volunteer may hold several stages, and two of them talk to each other like strangers.
        """
        if self.route.taker not in ("seat", "elector"):
            return None
        if self.route.to == "first":
            return 0
        named: int = getattr(self, "stage")  # noqa: B009  (each of these names it)
        return named - 1 if self.route.to == "stage before" else named


class SeatMessage(Message, frozen=True, kw_only=True):
    """A message between seats, which counts in its lineage only."""

    era: Era = 0


class RoundMessage(SeatMessage, frozen=True):
    """A message about one attempt to close a step."""

    stage: StageIndex
    step: StepIndex
    attempt: Attempt


# --- the link -------------------------------------------------------------------------------

OuterPort = Annotated[int, Meta(ge=1, le=65535)]


class Hello(Message, frozen=True):
    """First message on a link: protocol and swarm. Any other first message is refused."""

    route = Route("node", "on_hello", sender="anyone")

    protocol: Annotated[int, Meta(ge=1, le=65535)]
    swarm: SwarmText | None
    """None: a newcomer asks for the manifest, which is no secret."""
    client: Annotated[str, Meta(max_length=limits.MAX_NAME_CHARS)]
    admission: Annotated[bytes, Meta(max_length=limits.MAX_ADMISSION_BYTES)] = b""
    """What admits the sender: nothing where anybody may join; in a private swarm its chain, or the
    proof of an invite's ticket, bound to both peer ids."""
    clock: Annotated[float, Meta(ge=0, le=limits.MAX_UNIX_S)] = 0.0
    """Unix seconds of the sender's own clock when it sends this; 0: it does not say."""
    seen: tuple[Annotated[str, Meta(max_length=45)], OuterPort] | None = None
    """The host and port at which the sender sees the receiver, over a direct link."""
    manifest: Annotated[bytes, Meta(max_length=48 * 1024)] = b""
    """The swarm's, with its founder's signature; only in answer to a Hello that names no swarm."""
    signature: Signature = b""


class Goodbye(Message, frozen=True):
    """The sender leaves or refuses the link; it finishes none of the work it holds."""

    route = Route("node", "on_goodbye", sender="anyone")

    reason: Reason


StatementKind = Literal["vouches", "expulsion", "amendments", "proof", "decision"]
ENVELOPES: Final[Mapping[StatementKind, tuple[int, int]]] = {
    "vouches": (1, limits.MAX_CHAIN),
    "expulsion": (1, 1 + limits.MAX_CHAIN),
    "amendments": (1, limits.MAX_AMENDMENTS),
    "proof": (2, 2),
    "decision": (1, 1),
}
"""The least and most envelopes of a kind."""


class Statements(Message, frozen=True):
    """Signed statements that the sender passes on; who signed them counts, not who sends them."""

    route = Route("node", "on_statements")

    kind: StatementKind
    """vouches: by these the receiver is a member now; it has shown a ticket in its Hello.
    expulsion: of a member, and its chain of vouches, which shows that the signer may expel it.
    amendments: by the founder; told after Hello, and when there is a new one, so that who names one
    has told it before. proof: two that cannot both be true. decision: a member's in a round, to be
    compared with what it has told the receiver."""
    envelopes: Annotated[tuple[Envelope, ...], Meta(max_length=limits.MAX_AMENDMENTS)]

    def __post_init__(self) -> None:
        least, most = ENVELOPES[self.kind]
        if not least <= len(self.envelopes) <= most:
            raise ValueError(f"{len(self.envelopes)} envelopes of {self.kind}")


# --- membership -----------------------------------------------------------------------------


class RecordDigest(Message, frozen=True):
    """Anti-entropy: the sender's records in one part of the slots (``membership/records.py``).
    ``want_reply`` asks the receiver for its own digest."""

    route = Route("node", "on_membership")

    entries: Annotated[list[DigestEntry], Meta(max_length=limits.MAX_DIGEST_ENTRIES)]
    want_reply: bool
    part: Annotated[int, Meta(ge=0, lt=limits.MAX_DIGEST_PARTS)] = 0
    parts: Annotated[int, Meta(ge=1, le=limits.MAX_DIGEST_PARTS)] = 1


class Records(Message, frozen=True):
    """Signed records that the receiver lacked or had in an older version."""

    route = Route("node", "on_membership")

    records: Annotated[list[Envelope], Meta(max_length=limits.MAX_RECORDS_PER_MESSAGE)]


class Heartbeat(Message, frozen=True):
    """Sent every second between neighbours, and at once when a seat's version or state changes."""

    route = Route("node", "on_membership")

    seq: Count
    seats: Annotated[list[SeatStatus], Meta(max_length=limits.MAX_SEATS)]
    echo: Count = 0
    """One more than the newest ``seq`` that the sender has received from the other side."""


class WaypointChain(Message, frozen=True):
    """Payload: the sender's chain of waypoints (``waypoints/chain.py``)."""

    route = Route("node", "waypoints.shown", sender="peer", lane="background")


class Letter(Message, frozen=True):
    """A message of the matching, between a volunteer and the steward of a stage."""

    route = Route("node", "on_letter")

    body: ToSteward | ToVolunteer


# --- pipeline -------------------------------------------------------------------------------


class LeaseRequest(SeatMessage, frozen=True):
    """A stage-0 replica asks the step's leader for work."""

    route = Route("seat", "leases.ask", sender="stage", to="first")

    step: StepIndex
    want: Annotated[int, Meta(ge=1, le=1024)]
    held: Annotated[int, Meta(ge=0, le=65535)] = 0
    """Microbatches of the step that it has, including counted ones; any other leased to it is still
    in flight."""


class Lease(SeatMessage, frozen=True):
    """Leases of a step."""

    route = Route("seat", "leasing.on_lease", sender="stage", to="first")

    step: StepIndex
    ids: Annotated[list[MicrobatchId], Meta(min_length=1, max_length=1024)]
    again: bool
    """They were leased before, to a replica that died."""


class Forward(SeatMessage, frozen=True):
    """Boundary activation into ``stage``. Payload: the tokens, as many as the manifest says, then
    the tensor."""

    route = Route(
        "seat", "pipeline.forward", sender="stage before", lane="bulk", sealed=True, work=True
    )

    stage: StageIndex
    step: StepIndex
    microbatch: MicrobatchId
    again: bool
    """Another replica had it before: ask the next stage for its holder before sending it on."""


class Backward(SeatMessage, frozen=True):
    """Gradient of the boundary, back to ``stage``, which sent the activation."""

    route = Route(
        "seat", "pipeline.backward", sender="stage after", lane="bulk", sealed=True, work=True
    )

    stage: StageIndex
    step: StepIndex
    microbatch: MicrobatchId


class HeldOut(SeatMessage, frozen=True):
    """Boundary activation of a held-out microbatch into ``stage``, forward only. Payload: its
    tokens, then the tensor, as of a Forward."""

    route = Route("seat", "evaluating.held_out", sender="stage before", lane="bulk")

    stage: StageIndex
    step: StepIndex
    """The version that it is run at."""
    item: Annotated[int, Meta(ge=0, lt=limits.MAX_HELD_OUT)]


class Have(SeatMessage, frozen=True):
    """Asks a replica of ``stage`` whether it holds a microbatch; if so the asker becomes its return
    address and gets the gradient, without sending the boundary again."""

    route = Route("seat", "pipeline.have", sender="stage before")

    stage: StageIndex
    step: StepIndex
    microbatch: MicrobatchId


Verdict = Literal["busy", "known", "absent", "declined"]


class Receipt(SeatMessage, frozen=True):
    """Answer to a Have, to a large Forward, to one that is not taken, or word of a microbatch that
    is held no more. ``busy``: try another, no penalty. ``known``, ``absent``: whether it is held.
    ``declined``: given back, because another replica counts it or has to compute it."""

    route = Route("seat", "pipeline.deliveries.receipt", sender="stage after", to="stage before")

    stage: StageIndex
    step: StepIndex
    microbatch: MicrobatchId
    verdict: Verdict


# --- rounds ---------------------------------------------------------------------------------


class LedgerReport(SeatMessage, frozen=True):
    """A replica's ledger, to the leader of the round; ``seq`` orders reports of one replica."""

    route = Route("seat", "leader.report", sender="stage")

    stage: StageIndex
    step: StepIndex
    seq: Count
    done: Bitmap
    in_flight: Bitmap
    promised: Attempt
    """Highest attempt of this round that the replica has promised."""
    state: StateHash = b""
    """Hash of the replica's current version; it must equal the siblings' (I2)."""
    knows: Electors = msgspec.field(default_factory=list)
    """Whom it vouches for in the stages beside: a plan may name them as electors."""


class Plan(RoundMessage, frozen=True):
    """The leader's plan of one attempt to close a step. Segment i belongs to member i."""

    route = Route("seat", "on_plan", sender="serves stage", observing=True, early=True)

    members: Annotated[
        list[PlanMember], Meta(min_length=1, max_length=limits.MAX_REPLICAS_IN_ROUND)
    ]
    bounds: Annotated[list[Count], Meta(max_length=limits.MAX_SEGMENTS + 1)]
    """Offsets into the flat gradient, ascending from 0: the segments of the first member's shard,
    then of the second's, and so on; len(members) x segments + 1 offsets, equally many for all."""
    observers: Annotated[list[PeerText], Meta(max_length=limits.MAX_REPLICAS_IN_ROUND)]
    """Joining peers: they receive the broadcast, contribute nothing, and are not waited for."""
    state: StateHash = b""
    """Hash of the version that most members hold; a member that differs fetches the state again."""
    electors: Electors = msgspec.field(default_factory=list)
    """Of the next step."""
    amended: StateHash = b""
    """Digest of the amendment that says this step's learning rate; empty: the manifest does."""
    promises: Promises = ()
    """Of a majority of the step's electors, from the second attempt on."""
    signature: Signature = b""


class Segment(RoundMessage, frozen=True):
    """A member's summand of a segment, sent to its owner. Payload: the encoded tensor."""

    route = Route("seat", "on_tensor", sender="stage", lane="bulk", sealed=True)

    segment: SegmentIndex


class Reduced(RoundMessage, frozen=True):
    """The owner's broadcast of a summed segment: the bytes that everyone applies."""

    route = Route(
        "seat", "on_tensor", sender="stage", lane="bulk", observing=True, early=True, sealed=True
    )

    segment: SegmentIndex
    sq_norm: SquaredNorm
    own_sq_norm: SquaredNorm = 0.0
    """In a local round: of one member's difference, on the mean (``rounds/stretch.py``)."""


class Ready(RoundMessage, frozen=True):
    """The member holds every reduced segment, and asks for a decree that says so."""

    route = Route("seat", "leader.ready", sender="stage")

    digest: Hash32
    """Of that decree, without losses and signatures; it covers the plan and all segments."""
    loss_sum: Finite
    """Sum of token losses over the ids the plan counts for this member (last stage, else 0)."""
    signature: Signature = b""


class Commit(RoundMessage, frozen=True):
    """The step is closed: every member applies it. Anyone may say so, for the votes prove it; the
    attempt is the one in which the electors voted, and the decree may be that of an earlier one."""

    route = Route("seat", "on_commit", observing=True, early=True)

    leader: PeerText
    """Who led that attempt."""
    decree: Decree
    votes: Signatures


class Propose(RoundMessage, frozen=True):
    """A leader to the electors of its step: a decree to vote for; without one, a question for their
    promises: to take part in no earlier attempt from now on. Attempt 0 is nobody's: whoever lacks
    the commit of a step that the receiver has closed asks for just that."""

    route = Route("elector", observing=True)

    decree: Decree | None = None
    promises: Promises = ()
    """Of a majority, from the second attempt on: the decree is that of the latest vote they name,
    or any if they name none."""
    before: Commit | None = None
    """Of the step before, for electors that hold another stage."""


class Vote(RoundMessage, frozen=True):
    """An elector's answer to an attempt."""

    route = Route("seat", "leader.vote")

    promised: Attempt
    """The last attempt that it takes part in; a later one than that answered is a refusal."""
    voted: Attempt = 0
    """The last attempt that it has voted in; 0: none."""
    decree: Decree | None = None
    """For which, in answer to a question."""
    signature: Signature = b""
    """Of the ``Ballot``; empty with a refusal."""


# --- audits ---------------------------------------------------------------------------------

Shown = Literal["list", "tokens", "input", "output", "grad_in", "grad_out", "segment"]


class Commitment(RoundMessage, frozen=True):
    """A member of a plan has signed the digest of a list of all that its contribution consists of,
    and those of its segments; sent before any part of the contribution."""

    route = Route("seat", "on_commitment", sender="stage", observing=True, early=True)

    root: Hash32 = bytes(32)
    segments: Annotated[tuple[StateHash, ...], Meta(max_length=limits.MAX_SEGMENTS)] = ()
    """Digests of the segments of the contribution, as in the list; empty for one of nothing."""
    signature: Signature = b""


class AuditRequest(RoundMessage, frozen=True):
    """An auditor asks a member of its stage to show what it has committed to: the list, then what
    that names (``item``: the microbatch or the segment). A replica of the stage ``beside`` asks for
    the list alone, of the attempt that the member contributed to last."""

    route = Route("seat", "showing.on_request", sender="near", aside=True)

    name: Shown
    item: MicrobatchId
    of: PeerText | None = None
    """Whose segment, of those that the asked member has summed; None: its own."""
    beside: StageIndex | None = None


class AuditReply(RoundMessage, frozen=True):
    """Payload: what was asked for."""

    route = Route("seat", "on_shown", sender="near", lane="bulk", sealed=True)

    name: Shown
    item: MicrobatchId
    of: PeerText | None = None
    said: Commitment | None = None
    """To a replica beside: the commitment to the list."""


class Charged(Message, frozen=True):
    """A member's signed charge against another one of its stage (``audit/charges.py``), to the
    replicas of ``stage``, which is that stage or one beside it."""

    route = Route("seat", "charging.on_charged", observing=True, aside=True)

    stage: StageIndex
    charge: Envelope


# --- joining a stage and transfer of state --------------------------------------------------


class JoinStage(Message, frozen=True):
    """A newcomer asks the replicas of ``stage`` to admit it; the next leader does."""

    route = Route("seat", "on_join", observing=True)

    stage: StageIndex


class Admit(SeatMessage, frozen=True):
    """The leader's message to replicas and newcomer: donors snapshot this version at once, and the
    newcomer observes every round from it on."""

    route = Route("seat", "on_admit", sender="stage", observing=True)

    stage: StageIndex
    version: StepIndex
    joiner: PeerText
    donors: Annotated[list[PeerText], Meta(min_length=1, max_length=8)]
    commit: Commit
    """That made this version: it names the members and the electors that the newcomer is to know.
    """
    state: Hash32
    """Hash of this version by the leader; a donor's state must match it."""


ChunkIndex = Annotated[int, Meta(ge=0, lt=limits.MAX_LEAVES)]
"""Number of a chunk, or of a leaf of token data."""


class ChunkRequest(Message, frozen=True):
    """Ask for a chunk of what has this root: a state, token data or another file. ``index`` None:
    for the list of the chunks' digests."""

    route = Route("node", "chunks.ask", sender="peer")

    root: Hash32
    index: ChunkIndex | None
    stage: StageIndex = 0
    version: StepIndex = 0
    """Of a state, whose donor may still be writing it: then there is no answer."""


class Chunk(Message, frozen=True):
    """Payload: the chunk's bytes, which must hash to its digest in the list, or the list itself
    (``index`` None), which must hash to the root. A leaf of token data has its path to the root
    behind it, and the root stands for their list. Empty: the sender does not have it, or with
    ``index`` None: does not have the whole, or gives nothing now."""

    route = Route("node", "downloads.receive", lane="background")

    root: Hash32
    index: ChunkIndex | None


MESSAGES: Final = tuple(
    kind
    for base in (Message, SeatMessage, RoundMessage)
    for kind in base.__subclasses__()
    if kind not in (SeatMessage, RoundMessage)
)
_messages: Final = Format[Message](reduce(or_, MESSAGES), "message")
encode_message, decode_message = _messages.encode, _messages.parse
"""To the header bytes of a message, and back."""
