"""The facts of a report: plain data, the answer of ``volunteer report --json``.

Texts are as others wrote them; the page and the terminal clean what they show.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from client.control.snapshot import (
    AuditCounts,
    ContributorView,
    Counters,
    CreditView,
    ExpelledView,
)
from client.control.updates import HeldOutPoint, StepPoint


class PartFacts(Struct, frozen=True, kw_only=True):
    """One text of a mixture."""

    name: str
    share: float
    """Of what is read, from 0 to 1."""
    epochs: float
    """How often the steps so far have read it."""


class RunFacts(Struct, frozen=True, kw_only=True):
    """What is trained, on what, and how far it is."""

    swarm: str
    swarm_name: str
    purpose: str = ""
    """What the model is for; empty: its founder does not say."""
    founder: str
    created: float
    """Unix seconds."""
    architecture: str
    layers: int
    width: int
    context: int
    """Tokens per sequence."""
    vocab: int
    parameters: int
    data: str
    data_bytes: int
    epochs: float | None
    """How often the steps so far have read the data; None where a zoo's tokenizer makes the tokens,
    so that their number is not known."""
    parts: list[PartFacts]
    """Of a mixture; empty: it is none."""
    step: int
    """Steps done."""
    steps: int
    """Steps of the whole run."""
    tokens: int
    """Trained on so far."""
    tokens_of: int
    """Of the whole run."""


class StageFacts(Struct, frozen=True, kw_only=True):
    """One stage of the model."""

    stage: int
    layers: int
    version: int | None
    """Newest version known; None: this disk has none."""
    serving: int | None
    """Volunteers that serve it; None: not known without a running volunteer."""
    words: str
    """What it lacks."""


class MemberFacts(Struct, frozen=True, kw_only=True):
    """A member that this volunteer knows."""

    peer: str
    name: str = ""
    """As it calls itself; empty: it has no name. Anybody may choose any."""
    state: str
    """``you``, ``connected``, ``suspect``, ``known``, ``gone``; ``met``: in an earlier session."""
    stages: list[int]
    microbatches_per_s: float
    standing: str = ""
    """How far it is trusted; empty: not known."""
    fault: str = ""
    """The newest audit of it that did not agree; empty: there was none."""


class FaultFacts(Struct, frozen=True, kw_only=True):
    """A fault, or an orderly departure, as this volunteer saw it."""

    time: float
    """Unix seconds."""
    step: int
    words: str
    stages: list[int]
    """Stages that the lost volunteer served."""
    in_order: bool
    """Whether it left on purpose."""
    repaired_after_s: float | None
    """Seconds until work went on; None: it has not, as far as is known."""
    steps_lost: int
    """Steps that were done again."""
    notes: list[str]


class SampleFacts(Struct, frozen=True, kw_only=True):
    """What this machine let a version write."""

    version: int
    prompt: str
    text: str


class HeldOutFacts(Struct, frozen=True, kw_only=True):
    """Losses on text that nobody trains on, computed by the swarm."""

    every: int
    """Steps between the versions that are evaluated."""
    tokens: int
    """Held-out tokens of each evaluation."""
    bits_per_nat: float
    """What a loss is multiplied with for bits per byte."""
    curve: list[HeldOutPoint]
    """Oldest first, thinned evenly."""


class Report(Struct, frozen=True, kw_only=True):
    """Answer of ``volunteer report --json``."""

    made: float
    """Unix seconds."""
    version: str
    """Of the program."""
    source: Literal["running", "disk"]
    """Whether a running volunteer was asked, or only this disk was read."""
    state: str
    """The volunteer's state in words, or how its last run ended."""
    run: RunFacts
    curve: list[StepPoint]
    """Oldest first, thinned evenly."""
    tokens_per_s: float | None
    """Of the swarm, now; None without a running volunteer."""
    own_tokens_per_s: float | None
    time_left_s: float | None
    """At that speed; None: not known."""
    stages: list[StageFacts]
    members: list[MemberFacts]
    contributors: list[ContributorView]
    """The leaderboard, the most work first."""
    credit: CreditView | None
    """This volunteer's work in all its sessions."""
    faults: list[FaultFacts]
    """The newest first."""
    counters: Counters | None
    """Since the volunteer was started; None: it does not run."""
    audits: AuditCounts | None
    """Of the members remembered, over all sessions; None: the run has none, or nothing was audited
    here."""
    expelled: list[ExpelledView]
    held_out: HeldOutFacts | None = None
    """None: the run has no evaluation."""
    samples: list[SampleFacts] = []
    """Of all versions that are kept, oldest first; empty unless this volunteer was told to."""
    schema_version: int = 1
