"""The manifest: the signed, immutable, purely declarative description of a run.

Its BLAKE2b-256 over the canonical encoding is the swarm's id, so two peers that agree on the id
agree on every number below.

Model, optimizer and data are described as
`model_zoo.specs` does, so what decodes here can be opened. It names architectures of the zoo; it
never carries code.
"""

import hashlib
from collections.abc import Iterator
from typing import Annotated, Final, Literal, get_args

import msgspec
from msgspec import Meta

from model_zoo.specs import aggregation as aggregations
from model_zoo.specs.codec import CODECS, AveragingCodec, BoundaryCodec, Codec
from model_zoo.specs.data import DataSpec
from model_zoo.specs.description import Description
from model_zoo.specs.local_rounds import OUTER, LocalRounds
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.optimizer import OptimizerSpec
from model_zoo.specs.precision import Compute
from model_zoo.specs.slices import cut_problem, stage_parameters
from model_zoo.specs.state import NUMBER_BYTES, StateSpec
from model_zoo.specs.tensor_headers import MAX_HEADER_BYTES
from model_zoo.specs.tokens import token_bytes
from protocol import limits
from protocol.errors import RemoteProtocolError
from protocol.ids import PeerId, SwarmId
from protocol.names import MAX_PURPOSE_CHARS, purpose_problem

NonNegative = Annotated[float, Meta(ge=0, le=1e30)]


MAX_IMPORTED_STAGES = 128
"""More, and the manifest would be too long."""


MALFORMED = "manifest-malformed"


class StageCost(Description, frozen=True):
    """The cost of one stage, measured by the founder; the units matching reckons in."""

    layers: Annotated[int, Meta(ge=1, le=1024)]
    flops: NonNegative
    """Forward and backward of one microbatch, floating point operations."""
    parameters: Annotated[int, Meta(ge=1, le=2**40)]
    uplink_bytes: NonNegative
    """Bytes a replica of this stage sends per microbatch (boundaries both ways)."""
    downlink_bytes: NonNegative
    memory_bytes: NonNegative
    """Memory that a replica needs at least, at the manifest's microbatch size."""


class StageStart(Description, frozen=True, array_like=True):
    """The file with the parameters that a stage begins with, where a model was imported."""

    size_bytes: Annotated[int, Meta(ge=1, le=2**40)]
    digest: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
    """Hash of the file (``model_zoo.specs.state_hash``), hex."""


FIRST_SAVED: Final = 8
"""The first version that is saved, where checkpoints are farther apart."""


class Policy(Description, frozen=True):
    """How the swarm looks after itself."""

    redundancy: Annotated[int, Meta(ge=1, le=16)] = 2
    """Replicas every stage should have (r of the matching)."""
    checkpoint_every: Annotated[int, Meta(ge=1, le=1_000_000)] = 50
    """Steps between asynchronous checkpoints of every replica."""
    private: bool = False
    """Only members are admitted whom another member, or the founder, has vouched for."""
    dual_homing: bool = True
    """Whether volunteers that can also hold a stage beside their first one."""

    def newest_saved(self, step: int) -> int:
        """Return the newest version up to ``step`` that every replica saves: of the first ones the
        powers of two from ``FIRST_SAVED`` on, so that a model can be tried early; 0: none."""
        if step >= self.checkpoint_every:
            return step - step % self.checkpoint_every
        return 1 << step.bit_length() - 1 if step >= FIRST_SAVED else 0


class Evaluation(Description, frozen=True):
    """How versions are evaluated on held-out text while the run goes on."""

    every: Annotated[int, Meta(ge=1, le=1_000_000)]
    """Versions whose number it divides are evaluated, and the last one."""
    microbatches: Annotated[int, Meta(ge=1, le=limits.MAX_HELD_OUT)]
    """The first held-out microbatches, as large as those that train."""
    tokens: Annotated[int, Meta(ge=1, le=2**40)]
    """Of these that are predicted, and learned."""
    size_bytes: Annotated[int, Meta(ge=1, le=2**40)]
    """Of text that these tokens stand for, as the founder has counted them."""


class Manifest(Description, frozen=True):
    """One run. All units are in the field names; stages are in pipeline order."""

    protocol: Literal[1]
    name: Annotated[str, Meta(min_length=1, max_length=limits.MAX_NAME_CHARS)]
    founder: PeerId
    created: Annotated[int, Meta(ge=0, le=2**40)]
    """Unix seconds; also makes two swarms with the same settings different."""
    seed: Annotated[int, Meta(ge=0, le=2**62)]
    model: ModelSpec
    stages: Annotated[tuple[StageCost, ...], Meta(min_length=1, max_length=limits.MAX_STAGES)]
    sequences_per_microbatch: Annotated[int, Meta(ge=1, le=4096)]
    microbatches_per_step: Annotated[int, Meta(ge=1, le=limits.MAX_MICROBATCHES_PER_STEP)]
    steps: Annotated[int, Meta(ge=1, le=limits.MAX_STEP)]
    optimizer: OptimizerSpec
    data: DataSpec
    boundary_codec: Codec = "s8"
    averaging_codec: AveragingCodec = "s8"
    policy: Policy = Policy()
    local_rounds: LocalRounds | None = None
    """Steps are rounds, between which replicas take steps of their own; None: all replicas average
    their gradients in every step."""
    compute: Compute = "fp32"
    """The type in which passes compute, or `auto`: that which each machine is fast in, where there
    are no audits."""
    aggregation: str = aggregations.DEFAULT
    """Name of the rule that aggregates what the replicas of a stage contribute to a step."""
    audit_percent: Annotated[int, Meta(ge=0, le=100)] = 0
    """How many of the contributions to steps are computed again by another replica of the stage."""
    start: Annotated[tuple[StageStart, ...], Meta(max_length=MAX_IMPORTED_STAGES)] = ()
    """The parameters of version 0, by stage in pipeline order, or what is frozen beside adapters.
    Empty: they follow from the seed."""
    purpose: Annotated[str, Meta(max_length=MAX_PURPOSE_CHARS)] = ""
    """What the model is for: one line for people. Empty: its founder does not say."""
    evaluation: Evaluation | None = None
    """None: versions are not evaluated."""

    @property
    def audits(self) -> float:
        """Share of the contributions that is audited, from 0 to 1."""
        return self.audit_percent / 100

    @property
    def state(self) -> StateSpec:
        """The layout of every stage's state."""
        if self.local_rounds is not None:
            return StateSpec(OUTER.name)
        return StateSpec(self.optimizer.name)

    @property
    def inner_optimizer(self) -> str | None:
        """The optimizer of inner steps; None: there are none."""
        return None if self.local_rounds is None else self.optimizer.name

    @property
    def stage_count(self) -> int:
        """Number of stages S."""
        return len(self.stages)

    @property
    def layers_per_stage(self) -> tuple[int, ...]:
        """Transformer layers of each stage, in pipeline order."""
        return tuple(stage.layers for stage in self.stages)

    @property
    def tokens_everywhere(self) -> bool:
        """Whether every stage needs a microbatch's tokens: for the borders of conversations, or for
        what is not sent of them over narrow boundaries."""
        return self.data.masked or self.model.narrow is not None

    @property
    def tokens_per_microbatch(self) -> int:
        """Predicted tokens in one microbatch: B x T."""
        return self.sequences_per_microbatch * self.model.context

    @property
    def tokens_per_step(self) -> int:
        """Predicted tokens in one step."""
        return self.microbatches_per_step * self.tokens_per_microbatch


_FRAME_SLACK_BYTES = 64 * 1024

_encoder = msgspec.json.Encoder(order="sorted")
_decoder = msgspec.json.Decoder(Manifest)
MAX_MANIFEST_BYTES = 48 * 1024


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the canonical encoding (JSON, sorted keys, no spaces): the bytes that are signed."""
    return _encoder.encode(manifest)


def swarm_id(encoded: bytes) -> SwarmId:
    """Return the id of the swarm that a canonically encoded manifest describes."""
    return SwarmId(hashlib.blake2b(encoded, digest_size=32).hexdigest())


def decode_manifest(encoded: bytes) -> Manifest:
    """Parse and check a canonically encoded manifest.

    Raises:
        RemoteProtocolError: too long, malformed, not canonical, or inconsistent in itself.
    """
    if len(encoded) > MAX_MANIFEST_BYTES:
        raise RemoteProtocolError("manifest-too-long", f"{len(encoded)} bytes")
    try:
        manifest = _decoder.decode(encoded)
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError) as error:
        raise RemoteProtocolError(MALFORMED, str(error)) from error
    if encode_manifest(manifest) != encoded:
        raise RemoteProtocolError("manifest-not-canonical")
    problem = inconsistency(manifest)
    if problem:
        raise RemoteProtocolError("manifest-inconsistent", problem)
    return manifest


def is_of_another_version(error: RemoteProtocolError) -> bool:
    """Whether a manifest was refused for a field or value that this version does not know.

    Most likely another version has made it; nobody has checked its signature yet.
    """
    unknown = ("unknown field", "Invalid enum value")
    return error.reason == MALFORMED and any(words in str(error) for words in unknown)


def inconsistency(manifest: Manifest) -> str | None:
    """Say in words what contradicts itself in a manifest, or None."""
    about = (_of_names, _of_rules, _of_the_model, _of_the_data)
    checks = (check for checks in about for check in checks(manifest))
    stages = (
        _wrong_start(manifest, number)
        or _miscounted(manifest.model, manifest.layers_per_stage, number, stage.parameters)
        or too_large(stage.parameters)
        for number, stage in enumerate(manifest.stages)
    )
    found = (words for holds, words in checks if not holds)
    return next(found, None) or next(filter(None, stages), None)


Checks = Iterator[tuple[bool, str]]
"""What has to hold, and words for when it does not."""


def _of_names(manifest: Manifest) -> Checks:
    problem = purpose_problem(manifest.purpose)
    yield manifest.name.isprintable(), "the name has characters that cannot be shown"
    yield not problem, f"what the model is for is no line for people: {problem}"
    yield _is_plain_name(manifest.data.name), "the data's name is not the plain name of a file"
    yield (
        all(_is_plain_name(part.name) for part in manifest.data.parts),
        "a name of the data's parts is not the plain name of a file",
    )


def _of_rules(manifest: Manifest) -> Checks:
    """How sums are made, sent and audited."""
    local, codec = manifest.local_rounds is not None, manifest.averaging_codec
    yield (
        manifest.aggregation in aggregations.RULES,
        f"aggregation rule {manifest.aggregation[:40]!r} is unknown here; known are "
        f"{', '.join(aggregations.RULES)}: install the version of this program that has it",
    )
    yield (
        manifest.compute != "auto" or not manifest.audits,
        "audits take the difference between honest passes in bf16 and in fp32 for a lie: take "
        "--compute-dtype fp32 or bf16, or among friends --audit 0",
    )
    yield (
        manifest.boundary_codec in get_args(BoundaryCodec),
        f"{manifest.boundary_codec} is for sums within a stage, whose errors the next step "
        f"pays back; between stages nothing does: take {', '.join(get_args(BoundaryCodec))}",
    )
    yield (
        not local or not manifest.audits,
        "an audit cannot recompute what local rounds contribute, for it follows from momentum "
        "that no other replica has: leave out --audit, and bound lies with --aggregation "
        "centred-clipping",
    )
    yield (
        CODECS[codec].audited or not manifest.audits,
        f"audits take for a lie what {codec} leaves for the next step: "
        "take --audit 0, or --averaging-codec s8",
    )


def _of_the_model(manifest: Manifest) -> Checks:
    model, layers, evaluation = manifest.model, manifest.layers_per_stage, manifest.evaluation
    problem = cut_problem(model, layers)
    yield not problem, f"the stages are no cut of it: {problem}"
    yield (
        model.narrow is None or not manifest.start,
        "narrow boundaries are learned from the first step: an imported model has none",
    )
    yield (
        not model.tied or len(layers) == 1,
        "the model's output projection is its embedding: one stage has to have both",
    )
    yield (
        evaluation is None
        or evaluation.tokens <= evaluation.microbatches * manifest.tokens_per_microbatch,
        "the evaluation counts more tokens than its microbatches have",
    )


def _of_the_data(manifest: Manifest) -> Checks:
    data, model = manifest.data, manifest.model
    yield (
        data.holds_samples(model.context),
        "the part of the data that is held out is shorter than one sample",
    )
    yield (
        data.vocab <= model.vocab,
        f"the tokenizer has {data.vocab} tokens, and the model's embedding "
        f"{model.vocab}: the rest could not be learned",
    )
    yield (
        data.answers is None or data.answers.context == model.context,
        "the data's conversations were cut for another context than the model's",
    )
    yield (
        fits_a_frame(model, manifest.sequences_per_microbatch, masked=data.masked),
        "a microbatch's boundary tensor is larger than a frame: use smaller microbatches",
    )


def _miscounted(model: ModelSpec, layers: tuple[int, ...], stage: int, claimed: int) -> str | None:
    """Say in words how a stage's parameters are not those of its part of the model, or None."""
    count = stage_parameters(model, layers, stage)
    return None if claimed == count else f"stage {stage} has {count} parameters, not {claimed}"


def _wrong_start(manifest: Manifest, stage: int) -> str | None:
    """Say in words why a stage cannot begin with the parameters that it is given, or None."""
    if not manifest.start:
        return None
    if len(manifest.start) != manifest.stage_count:
        return "there is not one start for each stage"
    size = manifest.start[stage].size_bytes
    parameters = stage_parameters(manifest.model.base, manifest.layers_per_stage, stage)
    if not 2 * parameters < size <= NUMBER_BYTES * parameters + MAX_HEADER_BYTES:
        return f"the start of stage {stage} is not as large as its parameters"
    if size > limits.MAX_BLOB_BYTES:
        return f"the start of stage {stage} is too large to be copied: take more stages"
    return None


def fits_a_frame(model: ModelSpec, sequences: int, *, masked: bool = False) -> bool:
    """Whether a microbatch of so many sequences can be sent, in any codec: its boundary tensor, its
    tokens, ``masked`` or not, and what frames and codecs add."""
    boundary = sequences * model.context * model.boundary_width * NUMBER_BYTES
    tokens = sequences * (model.context + 1) * token_bytes(model.vocab, masked=masked)
    beside = max(limits.CHUNK_BYTES, tokens + _FRAME_SLACK_BYTES)
    return boundary + beside <= limits.MAX_PAYLOAD_BYTES


def too_large(parameters: int) -> str | None:
    """Return why replicas of a stage of so many parameters could not sum gradients, or None."""
    if parameters > limits.MAX_STAGE_PARAMETERS:
        return f"a stage of {parameters} parameters is too large to be averaged: take more stages"
    return None


def _is_plain_name(name: str) -> bool:
    """No separators, no control characters: it ends in terminals and beside file names."""
    return name.isprintable() and not set(name) & set("/\\") and not name.startswith(".")
