"""Where every message goes: who takes it, from whom it counts, for which stage, in which states.

One row a message; nothing else decides by type where a message goes. The engine looks a message up
once (``ROUTES``) and hands it to whoever takes it; a seat checks ``sender`` against its view and
``states`` against its own before it calls the handler. A new message is a class in ``messages.py``,
a row here and its handler.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

from protocol.wire.messages import (
    Admit,
    AmendmentList,
    AmendmentRequest,
    AuditNotice,
    AuditReply,
    AuditRequest,
    AuditResult,
    Backward,
    BlobOffer,
    BlobQuery,
    ChainLink,
    Charged,
    Chunk,
    ChunkRequest,
    Commit,
    CommitAck,
    Commitment,
    Dealing,
    Evidence,
    ExpulsionList,
    Forward,
    Goodbye,
    Have,
    Heartbeat,
    HeldOut,
    Hello,
    JoinStage,
    Lease,
    LeaseRequest,
    LedgerReport,
    Letter,
    ManifestReply,
    ManifestRequest,
    Message,
    Moving,
    NoBlob,
    Observed,
    Opening,
    PassedOn,
    Ping,
    Plan,
    Pong,
    Probed,
    ProbeRequest,
    Ready,
    Receipt,
    RecordDigest,
    Records,
    Reduced,
    Returned,
    Segment,
    Vouched,
    Wire,
)

Taker = Literal["link", "newcomer", "node", "seat"]
"""The taker of a message: the link's carrier, whoever asks for a manifest to join, the engine of a
node, or the seat in a stage."""
Sender = Literal["anyone", "peer", "member", "stage before", "stage after", "stage", "serves stage"]
"""Senders from which a message counts.

anyone: before its Hello is accepted, too. peer: another member, once admitted. member: an admitted
peer, or another stage of our own. The others are members that hold a seat, by the receiver's view:
in the stage before, the one after, or the same one, or that serve it.
"""
State = Literal["observing", "serving"]
"""Of a seat: it follows the rounds of its stage, or it is a replica."""
Address = Literal["stage", "stage before", "first"]
"""For which stage a message is: the one it names, the one before that, or stage 0."""
ALWAYS: Final[tuple[State, ...]] = ("observing", "serving")
SERVING: Final[tuple[State, ...]] = ("serving",)


@dataclass(frozen=True, slots=True)
class Route:
    """One row.

    Args:
        handler: the method of the engine, of the seat, or of a part of the seat (``part.method``).
        stage: for which stage it is; None: for the node as a whole.
        states: in which the seat takes it.
        early: what is said of a later step is kept until the seat gets there.
        sealed: the handler also gets the digest that names the payload.
        work: its payload is work done for the stage.
        aside: it counts from a replica that is set aside, too.
    """

    taker: Taker
    handler: str
    sender: Sender = "member"
    stage: Address | None = None
    states: tuple[State, ...] = SERVING
    early: bool = False
    sealed: bool = False
    work: bool = False
    aside: bool = False


ROUTES: Final[Mapping[type[Wire], Route]] = MappingProxyType(
    {
        # the link
        Hello: Route("node", "on_hello", "anyone"),
        Goodbye: Route("node", "on_goodbye", "anyone"),
        ManifestRequest: Route("node", "on_manifest_request", "anyone"),
        ManifestReply: Route("newcomer", ""),
        Vouched: Route("node", "on_vouched", "peer"),
        ExpulsionList: Route("node", "on_expulsions", "peer"),
        AmendmentList: Route("node", "on_amendments", "peer"),
        AmendmentRequest: Route("node", "on_amendment_request", "peer"),
        Observed: Route("node", "on_observed", "peer"),
        ProbeRequest: Route("node", "on_probe_request", "peer"),
        Probed: Route("node", "on_probed", "peer"),
        Ping: Route("link", ""),
        Pong: Route("link", ""),
        Moving: Route("link", ""),
        # membership and matching
        RecordDigest: Route("node", "on_membership"),
        Records: Route("node", "on_membership"),
        Heartbeat: Route("node", "on_membership"),
        Evidence: Route("node", "on_evidence"),
        PassedOn: Route("node", "on_passed_on"),
        ChainLink: Route("node", "on_chain_link", "peer"),
        Letter: Route("node", "on_letter"),
        # blobs: those that are asked for, those that are fetched
        BlobQuery: Route("node", "on_blob_query", "peer"),
        ChunkRequest: Route("node", "on_chunk_request", "peer"),
        BlobOffer: Route("node", "on_offer", stage="stage"),
        NoBlob: Route("node", "on_offer", stage="stage"),
        Chunk: Route("node", "on_chunk", stage="stage"),
        # joining a stage
        JoinStage: Route("seat", "on_join", "member", "stage", ALWAYS),
        Admit: Route("seat", "on_admit", "stage", "stage", ALWAYS),
        # work
        Lease: Route("seat", "on_lease", "stage", "first"),
        LeaseRequest: Route("seat", "on_lease_request", "stage", "first"),
        Forward: Route("seat", "pipeline.forward", "stage before", "stage", work=True),
        Backward: Route("seat", "pipeline.backward", "stage after", "stage", work=True),
        Receipt: Route("seat", "pipeline.receipt", "stage after", "stage before"),
        HeldOut: Route("seat", "evaluating.held_out", "stage before", "stage"),
        Have: Route("seat", "on_have", "stage before", "stage"),
        # rounds
        LedgerReport: Route("seat", "on_report", "stage", "stage"),
        Returned: Route("seat", "on_returned", "stage before", "stage", aside=True),
        Plan: Route("seat", "on_plan", "serves stage", "stage", ALWAYS, early=True),
        Dealing: Route("seat", "member.on_dealing", "stage", "stage", ALWAYS, early=True),
        Segment: Route("seat", "on_segment", "stage", "stage", sealed=True),
        Reduced: Route("seat", "on_reduced", "stage", "stage", ALWAYS, early=True, sealed=True),
        Ready: Route("seat", "on_ready", "stage", "stage"),
        Commit: Route("seat", "on_commit", "serves stage", "stage", ALWAYS, early=True),
        Opening: Route("seat", "member.on_opening", "stage", "stage", ALWAYS, early=True),
        CommitAck: Route("seat", "on_commit_ack", "stage", "stage"),
        # audits
        Commitment: Route("seat", "on_commitment", "stage", "stage", ALWAYS, early=True),
        AuditNotice: Route("seat", "auditing.on_notice", "stage", "stage"),
        AuditResult: Route("seat", "auditing.on_result", "stage", "stage"),
        AuditRequest: Route("seat", "showing.on_request", "stage", "stage", aside=True),
        AuditReply: Route("seat", "auditing.on_reply", "stage", "stage", sealed=True),
        Charged: Route("seat", "charging.on_charged", "member", "stage", ALWAYS, aside=True),
    }
)


def addressed_stage(message: Message) -> int | None:
    """Return the stage whose seat a message is for; None if it is for no seat.

    A volunteer may hold several stages, and two of them talk to each other like strangers.
    """
    where = ROUTES[type(message)].stage
    if where is None:
        return None
    if where == "first":
        return 0
    named: int = getattr(message, "stage")  # noqa: B009  (each row with a stage names it)
    return named - 1 if where == "stage before" else named
