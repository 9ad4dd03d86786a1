"""All messages between two peers, typed and bounded.

A message is the header of a frame (framing.py); tensors and chunks follow it as the frame's
payload. Parsing checks lengths and ranges, so state machines see only valid values. The meaning of
a message is documented in the machine that receives it.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, Struct

from protocol import limits
from protocol.errors import RemoteProtocolError
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
    Share,
    ShareHash,
    Signature,
    SquaredNorm,
    StageIndex,
    StateHash,
    StepIndex,
    SwarmText,
)
from protocol.wire.parts import (
    AgreedAmendments,
    DigestEntry,
    Electors,
    Expulsion,
    PlanMember,
    Proof,
    SeatStatus,
    WaypointLink,
)


class Wire(Struct, frozen=True, tag=True, array_like=True, forbid_unknown_fields=True):
    """Base of every message; ``array_like`` keeps headers small and field order is the format."""


# --- the link -------------------------------------------------------------------------------


class Hello(Wire, frozen=True):
    """First message on a link: protocol and swarm. Any other first message is refused."""

    protocol: Annotated[int, Meta(ge=1, le=65535)]
    swarm: SwarmText | None
    """None: a newcomer that asks for the manifest."""
    client: Annotated[str, Meta(max_length=limits.MAX_NAME_CHARS)]
    admission: Annotated[bytes, Meta(max_length=limits.MAX_ADMISSION_BYTES)] = b""
    """What admits the sender: nothing where anybody may join; in a private swarm its chain, or the
    proof of an invite's ticket, bound to both peer ids."""
    clock: Annotated[float, Meta(ge=0, le=limits.MAX_UNIX_S)] = 0.0
    """Unix seconds of the sender's own clock when it sends this; 0: it does not say."""


class Ping(Wire, frozen=True):
    nonce: Annotated[int, Meta(ge=0, le=2**62)]


class Pong(Wire, frozen=True):
    nonce: Annotated[int, Meta(ge=0, le=2**62)]


class Moving(Wire, frozen=True):
    """The sender is about to dial the receiver, beside a connection through a relay: what comes
    takes over without ending the link. The receiver answers the same with ``answer``."""

    answer: bool = False


class Goodbye(Wire, frozen=True):
    """The sender leaves or refuses the link; it finishes none of the work it holds."""

    reason: Reason


class ManifestRequest(Wire, frozen=True):
    pass


class ManifestReply(Wire, frozen=True):
    manifest: Annotated[bytes, Meta(max_length=48 * 1024)]
    signature: Annotated[bytes, Meta(min_length=64, max_length=64)]


class Vouched(Wire, frozen=True):
    """Answer to a Hello with a ticket: the signatures by which the receiver is a member now."""

    chain: Annotated[list[Envelope], Meta(max_length=limits.MAX_CHAIN)]


class ExpulsionList(Wire, frozen=True):
    """Members that were expelled; told after Hello and when there is a new one."""

    expulsions: Annotated[list[Expulsion], Meta(max_length=limits.MAX_EXPULSIONS_PER_MESSAGE)]


class AmendmentList(Wire, frozen=True):
    """Amendments of the founder that the sender knows; told after Hello, and when there is a new
    one."""

    amendments: Annotated[list[Envelope], Meta(max_length=limits.MAX_AMENDMENTS_PER_MESSAGE)]


class AmendmentRequest(Wire, frozen=True):
    """The receiver has named an amendment that the sender lacks."""


# --- membership -----------------------------------------------------------------------------


class RecordDigest(Wire, frozen=True):
    """Anti-entropy: the sender's records. ``want_reply`` asks the receiver for its own digest."""

    entries: Annotated[list[DigestEntry], Meta(max_length=limits.MAX_DIGEST_ENTRIES)]
    want_reply: bool


class Records(Wire, frozen=True):
    """Signed records that the receiver lacked or had in an older version."""

    records: Annotated[list[Envelope], Meta(max_length=limits.MAX_RECORDS_PER_MESSAGE)]


class Evidence(Wire, frozen=True):
    """Proof that a peer has signed two bodies that cannot both be true; any peer may relay it."""

    proof: Proof


class PassedOn(Wire, frozen=True):
    """A leader's statement to the sender, to be compared with its statements to others."""

    statement: Envelope


class Heartbeat(Wire, frozen=True):
    """Sent every second between neighbours, and at once when a seat's version or state changes."""

    seq: Count
    seats: Annotated[list[SeatStatus], Meta(max_length=limits.MAX_SEATS)]
    lost: Annotated[list[PeerText], Meta(max_length=limits.MAX_LOST)] = msgspec.field(
        default_factory=list
    )
    """Peers the sender has lost: silent for too long, or their connection ended."""
    echo: Count = 0
    """One more than the newest ``seq`` that the sender has received from the other side."""


class ChainLink(Wire, frozen=True):
    """One link of the sender's chain of waypoints; ``index`` 0 begins the chain anew."""

    index: Annotated[int, Meta(ge=0, le=255)]
    link: WaypointLink


class Letter(Wire, frozen=True):
    """A message of the matching, sent directly (PROPOSE, HOLD, ...)."""

    kind: Annotated[str, Meta(max_length=32)]
    body: Annotated[bytes, Meta(max_length=limits.MAX_LETTER_BYTES)]


# --- pipeline -------------------------------------------------------------------------------


class LeaseRequest(Wire, frozen=True):
    """A stage-0 replica asks the step's leader for work."""

    step: StepIndex
    want: Annotated[int, Meta(ge=1, le=1024)]
    held: Annotated[int, Meta(ge=0, le=65535)] = 0
    """Microbatches of the step that it has, including counted ones; any other leased to it is still
    in flight."""
    era: Era = 0


class Lease(Wire, frozen=True):
    """Leases of a step."""

    step: StepIndex
    ids: Annotated[list[MicrobatchId], Meta(min_length=1, max_length=1024)]
    again: bool
    """They were leased before, to a replica that died."""
    era: Era = 0


class Forward(Wire, frozen=True):
    """Boundary activation into ``stage``. Payload: ``tokens_bytes`` of tokens, then the tensor."""

    stage: StageIndex
    step: StepIndex
    microbatch: MicrobatchId
    attempt: Attempt
    tokens_bytes: Annotated[int, Meta(ge=0, le=limits.MAX_PAYLOAD_BYTES)]
    again: bool
    """Another replica had it before: ask the next stage for its holder before sending it on."""
    era: Era = 0


class Backward(Wire, frozen=True):
    """Gradient of the boundary, back to ``stage``, which sent the activation."""

    stage: StageIndex
    step: StepIndex
    microbatch: MicrobatchId
    attempt: Attempt
    era: Era = 0


class HeldOut(Wire, frozen=True):
    """Boundary activation of a held-out microbatch into ``stage``, forward only. Payload: its
    tokens, then the tensor, as of a Forward."""

    stage: StageIndex
    step: StepIndex
    """The version that it is run at."""
    item: Annotated[int, Meta(ge=0, lt=limits.MAX_HELD_OUT)]
    path: Annotated[int, Meta(ge=0, lt=limits.MAX_PATHS)]
    era: Era = 0


class Have(Wire, frozen=True):
    """Asks a replica of ``stage`` whether it holds a microbatch; if so the asker becomes its return
    address and gets the gradient, without sending the boundary again."""

    stage: StageIndex
    step: StepIndex
    microbatch: MicrobatchId
    attempt: Attempt
    era: Era = 0


Verdict = Literal["accepted", "busy", "stale", "known", "absent"]


class Receipt(Wire, frozen=True):
    """Answer to a Forward or a Have. ``busy``: try another, no penalty. ``stale``: wrong version.
    ``absent``: only to Have."""

    stage: StageIndex
    step: StepIndex
    microbatch: MicrobatchId
    attempt: Attempt
    verdict: Verdict
    queue: Annotated[int, Meta(ge=0, le=65535)]
    era: Era = 0


# --- rounds ---------------------------------------------------------------------------------


class LedgerReport(Wire, frozen=True):
    """A replica's ledger, to the leader of the round; ``seq`` orders reports of one replica."""

    stage: StageIndex
    step: StepIndex
    seq: Count
    done: Bitmap
    in_flight: Bitmap
    promised: Attempt
    """Highest attempt of this round that the replica has promised."""
    state: StateHash = b""
    """Hash of the replica's current version; it must equal the siblings' (I2)."""
    ready: StateHash = b""
    """Digest of the reduced segments of the promised attempt, once the replica is Ready."""
    era: Era = 0


class Returned(Wire, frozen=True):
    """A replica of the stage before ``stage`` has counted these microbatches: it received valid
    gradients for them."""

    stage: StageIndex
    step: StepIndex
    ids: Bitmap
    era: Era = 0


class Plan(Wire, frozen=True):
    """The leader's plan of one attempt to close a step. Segment i belongs to member i."""

    stage: StageIndex
    step: StepIndex
    attempt: Attempt
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
    """The peers that decide between the sides if the swarm splits before the next step closes."""
    era: Era = 0
    amended: AgreedAmendments = ()
    """The amendments on which the stage agrees with this step; they say its learning rate."""
    signature: Signature = b""


class Dealing(Wire, frozen=True):
    """Where sums are secret: what a member deals to another one of the plan (``secrecy/``)."""

    stage: StageIndex
    step: StepIndex
    attempt: Attempt
    hashes: Annotated[tuple[ShareHash, ...], Meta(max_length=limits.MAX_REPLICAS_IN_ROUND)]
    """Of the shares of the seed of its own mask, in the members' order; the same to all."""
    share: Share = b""
    """The receiver's share; empty for an observer."""
    pair: Annotated[bytes, Meta(max_length=32)] = b""
    """Seed of the mask that both have, if the receiver comes after the sender in the plan."""
    era: Era = 0


class Segment(Wire, frozen=True):
    """A member's summand of a segment, sent to its owner. Payload: the encoded tensor, whose digest
    is signed in a run with audits."""

    stage: StageIndex
    step: StepIndex
    attempt: Attempt
    segment: SegmentIndex
    era: Era = 0
    signature: Signature = b""


class Reduced(Wire, frozen=True):
    """The owner's broadcast of a summed segment: the bytes that everyone applies."""

    stage: StageIndex
    step: StepIndex
    attempt: Attempt
    segment: SegmentIndex
    sq_norm: SquaredNorm
    era: Era = 0


class Ready(Wire, frozen=True):
    """The member holds every reduced segment; ``digest`` covers them all."""

    stage: StageIndex
    step: StepIndex
    attempt: Attempt
    digest: Hash32
    loss_sum: Finite
    """Sum of token losses over the ids the plan counts for this member (last stage, else 0)."""
    era: Era = 0
    signature: Signature = b""


class Commit(Wire, frozen=True):
    """The leader's decision that the round is closed: every member applies it."""

    stage: StageIndex
    step: StepIndex
    attempt: Attempt
    digest: Hash32
    loss_sum: Finite | None
    """None: the members that knew the sum are gone."""
    era: Era = 0
    signature: Signature = b""


class Opening(Wire, frozen=True):
    """Where sums are secret: a member's share of every member's seed, in the plan's order, once the
    attempt is committed."""

    stage: StageIndex
    step: StepIndex
    attempt: Attempt
    shares: Annotated[tuple[Share, ...], Meta(max_length=limits.MAX_REPLICAS_IN_ROUND)]
    era: Era = 0


class CommitAck(Wire, frozen=True):
    """A member knows the commit. The leader applies it only after that, so that a survivor knows
    the decision whoever dies."""

    stage: StageIndex
    step: StepIndex
    attempt: Attempt
    """The committed attempt; a later one means that the member follows that attempt instead."""
    era: Era = 0


# --- audits ---------------------------------------------------------------------------------

Shown = Literal["list", "tokens", "input", "output", "grad_in", "grad_out", "segment"]


class Commitment(Wire, frozen=True):
    """A member of a plan has signed the digest of a list of all that its contribution consists of,
    and those of its segments; sent before any part of the contribution."""

    stage: StageIndex
    step: StepIndex
    attempt: Attempt
    root: StateHash = b""
    segments: Annotated[tuple[StateHash, ...], Meta(max_length=limits.MAX_SEGMENTS)] = ()
    """Digests of the segments of the contribution, as in the list; empty for one of nothing."""
    signature: Signature = b""
    era: Era = 0


class AuditNotice(Wire, frozen=True):
    """The sender audits this contribution of ``member``, and a sum of it; sent to the other members
    of the plan before the sender is Ready, so that they keep the version, too."""

    stage: StageIndex
    step: StepIndex
    attempt: Attempt
    member: PeerText
    segment: SegmentIndex | None = None
    """Whose sum is made again; None: the member owns none."""
    era: Era = 0


class AuditResult(Wire, frozen=True):
    """The end of an announced audit: others audit the same contribution if it did not agree."""

    stage: StageIndex
    step: StepIndex
    attempt: Attempt
    member: PeerText
    agrees: bool
    era: Era = 0


class AuditRequest(Wire, frozen=True):
    """An auditor asks a member of its stage to show what it has committed to: the list, then what
    that names (``item``: the microbatch or the segment)."""

    stage: StageIndex
    step: StepIndex
    attempt: Attempt
    name: Shown
    item: MicrobatchId
    of: PeerText | None = None
    """Whose segment, of those that the asked member has summed; None: its own."""
    era: Era = 0


class AuditReply(Wire, frozen=True):
    """Payload: what was asked for."""

    stage: StageIndex
    step: StepIndex
    attempt: Attempt
    name: Shown
    item: MicrobatchId
    of: PeerText | None = None
    era: Era = 0


class Charged(Wire, frozen=True):
    """A member's signed charge against another one of its stage (``audit/charges.py``), to the
    replicas of ``stage``, which is that stage or one beside it."""

    stage: StageIndex
    charge: Envelope


# --- joining a stage and transfer of state --------------------------------------------------


class JoinStage(Wire, frozen=True):
    """A newcomer asks the replicas of ``stage`` to admit it; the next leader does."""

    stage: StageIndex


class Admit(Wire, frozen=True):
    """The leader's message to replicas and newcomer: donors snapshot this version at once, and the
    newcomer observes every round from it on."""

    stage: StageIndex
    version: StepIndex
    joiner: PeerText
    donors: Annotated[list[PeerText], Meta(min_length=1, max_length=8)]
    roll: Electors = msgspec.field(default_factory=list)
    electors: Electors = msgspec.field(default_factory=list)
    """Members of the plan that made this version; and its electors."""
    state: StateHash = b""
    """Hash of this version by the leader; a donor's state must match it."""
    era: Era = 0
    amended: AgreedAmendments = ()
    """The amendments on which the stage had agreed at this version."""


BlobKind = Literal["state", "data", "start"]
"""A stage's state at a version, the training text, and the parameters that a stage of an imported
model begins with."""


ChunkIndex = Annotated[int, Meta(ge=0, lt=limits.MAX_LEAVES)]
"""Number of a chunk, or of a leaf of token data."""


class BlobOffer(Wire, frozen=True):
    """A donor has this blob; equal roots from two donors allow striping. The root is the digest of
    the list of all chunks' digests; of token data it is the manifest's, which proves each leaf."""

    kind: BlobKind
    stage: StageIndex
    version: StepIndex
    size_bytes: Count
    root: Hash32


class BlobQuery(Wire, frozen=True):
    """Ask for an offer. ``version`` None: the newest one held."""

    kind: BlobKind
    stage: StageIndex
    version: StepIndex | None


class NoBlob(Wire, frozen=True):
    kind: BlobKind
    stage: StageIndex
    version: StepIndex | None
    reason: Reason


class ChunkRequest(Wire, frozen=True):
    """Ask for a chunk. ``index`` None: for the list of the chunks' digests."""

    kind: BlobKind
    stage: StageIndex
    version: StepIndex
    index: ChunkIndex | None


class Chunk(Wire, frozen=True):
    """Payload: the chunk's bytes, which must hash to its digest in the list, or the list itself
    (``index`` None), which must hash to the offer's root. A leaf of token data has its path to the
    root behind it; empty: the sender does not have it."""

    kind: BlobKind
    stage: StageIndex
    version: StepIndex
    index: ChunkIndex | None


# --- reachability ---------------------------------------------------------------------------

PROBE_FILLER_BYTES: Final = 640
"""More than a prober sends for a request: three SYNs, or a dial and the first half of a handshake,
each with the headers of its packets."""
OuterPort = Annotated[int, Meta(ge=1, le=65535)]


class Observed(Wire, frozen=True):
    """The address at which the sender sees the receiver, over a direct link."""

    host: Annotated[str, Meta(max_length=45)]
    port: OuterPort


class ProbeRequest(Wire, frozen=True):
    """Ask a member to dial us at the address at which it sees us. The filler makes the request
    dearer than the answer."""

    number: Count
    port: OuterPort
    filler: Annotated[bytes, Meta(min_length=PROBE_FILLER_BYTES, max_length=PROBE_FILLER_BYTES)]


class Probed(Wire, frozen=True):
    """Answer to a ProbeRequest: whether the receiver has proved its identity there. None: it was
    not dialled."""

    number: Count
    reached: bool | None


Admitting = ManifestRequest | ManifestReply | Vouched | ExpulsionList
Amending = AmendmentList | AmendmentRequest
Reaching = Observed | ProbeRequest | Probed
Upkeep = Hello | Ping | Pong | Moving | Goodbye | Admitting | Amending | Reaching
Membership = RecordDigest | Records | Heartbeat | Evidence | PassedOn | ChainLink
Work = LeaseRequest | Lease | Have | Receipt
Closing = LedgerReport | Returned | Plan | Dealing | Ready | Commit | CommitAck | Opening
Auditing = Commitment | AuditNotice | AuditResult | AuditRequest | Charged
Joining = JoinStage | Admit | BlobOffer | BlobQuery | NoBlob | ChunkRequest
Control = Upkeep | Membership | Letter | Work | Closing | Auditing | Joining
Bulk = Forward | Backward | HeldOut | Segment | Reduced | AuditReply | Chunk
Message = Control | Bulk

BULK_TYPES: tuple[type[Wire], ...] = (
    Forward,
    Backward,
    HeldOut,
    Segment,
    Reduced,
    AuditReply,
    Chunk,
)
"""The messages with a payload; they have lanes of their own, so that they delay no other."""
Lane = Literal["control", "bulk", "background"]
"""control: small messages; bulk: tensors that training waits for; background: state and text."""

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def encode_message(message: Message) -> bytes:
    """Return the header bytes of a message."""
    return _encoder.encode(message)


def decode_message(header: bytes) -> Message:
    """Parse a header.

    Raises:
        RemoteProtocolError: malformed, unknown type, or a field out of its range.
    """
    if len(header) > limits.MAX_HEADER_BYTES:
        raise RemoteProtocolError("header-too-long", f"{len(header)} bytes", penalty=50)
    try:
        return _decoder.decode(header)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError, RecursionError) as e:
        raise RemoteProtocolError("message-malformed", str(e), penalty=20) from e


def lane(message: Message) -> Lane:
    """Return the lane a message travels in."""
    if isinstance(message, Chunk):
        return "background"
    return "bulk" if isinstance(message, BULK_TYPES) else "control"


def payload_limit(message: Message) -> int:
    """Return the most payload bytes that may follow this message."""
    if isinstance(message, Chunk):
        return limits.CHUNK_BYTES
    if isinstance(message, BULK_TYPES):
        return limits.MAX_PAYLOAD_BYTES
    return limits.MAX_CONTROL_PAYLOAD_BYTES
