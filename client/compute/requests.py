"""The node's requests to its worker, each with the type of its reply.

Requests are executed in order and answered in order, except that `Save` is answered when the
file is complete. Payloads travel beside a request, in the order its docstring names. A request
that fails is answered by `Failed` and has changed nothing. Imports no torch.

Shapes: B sequences per microbatch, T tokens per sequence, C width.
"""

from typing import Annotated, Any, Generic, Literal, TypeVar, get_args

import msgspec
from msgspec import Meta

from client.compute.replies import (
    Applied,
    BackwardDone,
    Contributed,
    ContributionCompared,
    Forwarded,
    GroupJoined,
    Hashed,
    Loaded,
    LossComputed,
    Passed,
    Probed,
    Reduced,
    Reply,
    Saved,
    StageOpened,
    SumDecoded,
    SumGathered,
    ThreadsSet,
    VersionKept,
    VersionShared,
)
from model_zoo.specs.aggregation import DEFAULT as SUM
from model_zoo.specs.codec import AveragingCodec, Codec
from model_zoo.specs.data import DataSpec
from model_zoo.specs.local_rounds import LocalRounds
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.optimizer import OptimizerSpec
from model_zoo.specs.precision import DEFAULT, Compute
from model_zoo.specs.state import StateSpec

ReplyT = TypeVar("ReplyT", bound=Reply)
Count = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
Rate = Annotated[float, Meta(ge=0, le=10)]


class Request(msgspec.Struct, Generic[ReplyT], frozen=True, tag=True):
    """Base of all requests; the parameter is the type of the reply."""


class OpenStage(Request[StageOpened], frozen=True, kw_only=True):
    """Hold `stage` of the model at version 0; replaces the stage that was open.

    Fields:
        swarm: hex id, written into checkpoints.
        imported: whether the weights, or what is frozen beside adapters, come from `LoadStart`;
            until then they are zero.
        sequences, tokens: B and T of a microbatch.
        graphs_kept: most forward graphs held for their backward.
        threads: CPU threads; choose_threads: use fewer where that is as fast; device: `cpu`,
            `cuda`, `cuda:1`, or `auto`.
        compute_share: percentage of the time that tasks may compute.
        memory_bytes: limit of the stage's memory on the CPU, 0 for none; vram_share: percentage
            of the GPU's memory.
        offload: whether all vectors as long as the parameters, but these, lie in a GPU's host
            memory.
    """

    swarm: str
    model: ModelSpec
    layers_per_stage: list[int]
    stage: Count
    seed: int
    imported: bool = False
    optimizer: OptimizerSpec
    precision: Compute = DEFAULT
    """In which passes compute."""
    boundary_codec: Codec
    averaging_codec: AveragingCodec
    aggregation: str = SUM
    """Name of the rule by which segments are aggregated."""
    sequences: Positive
    tokens: Positive
    graphs_kept: Count = 4
    reruns_blocks: bool = False
    """Whether graphs keep the blocks' inputs alone, where whole ones do not fit."""
    threads: Positive = 1
    choose_threads: bool = False
    device: str = "cpu"
    compute_share: Annotated[int, Meta(ge=1, le=100)] = 100
    memory_bytes: Count = 0
    vram_share: Annotated[int, Meta(ge=1, le=100)] = 100
    offload: bool = False
    compile: Literal["auto", "on", "off"] = "off"
    """Whether blocks are compiled when the stage is opened; `auto`: on an NVIDIA or AMD GPU."""
    compile_folder: str = ""
    """Of what was compiled, now and in earlier sessions."""
    corpus: str = ""
    """Folder of the training data, or of leaves of them, for the first stage."""
    token_data: DataSpec | None = None
    """What the manifest says of the data; None: they are bytes, and all are learned."""
    local_rounds: LocalRounds | None = None
    """How the replica steps between two versions; None: it does not."""
    ranks: Positive = 1
    """Over which the stage is cut; 1: each rank of a group has all of it."""
    follows: bool = False
    """Whether another rank of the group makes the versions: then nothing is kept for updates."""

    @property
    def masked(self) -> bool:
        """Whether tokens say if they are learned."""
        return self.token_data is not None and self.token_data.masked

    @property
    def packed(self) -> bool:
        """Whether tokens say if a document begins with them."""
        return self.token_data is not None and self.token_data.packed

    @property
    def state(self) -> StateSpec:
        """The layout of a version of the stage."""
        if self.local_rounds is not None:
            return StateSpec(self.local_rounds.outer.name)
        return StateSpec(self.optimizer.name)


class JoinGroup(Request[GroupJoined], frozen=True, kw_only=True):
    """Become one of the ranks that are one worker; the answer comes when all have joined.

    Fields:
        rank: from 0, which makes the versions; size: number of ranks.
        device: of this rank; all are of one kind.
        meet: path of a file in a private folder, by which they find each other.
        timeout_s: seconds after which a rank that does not take part is given up.
    """

    rank: Count
    size: Annotated[int, Meta(ge=2)]
    device: str
    meet: str
    timeout_s: Positive


class GatherSum(Request[SumGathered], frozen=True, kw_only=True):
    """Move the gradient sums of a step to the first rank, which adds them in the order of ranks.

    Where the stage is cut over the ranks, all are asked, and all have counted the same.

    Fields:
        counted: the microbatches in the sum of each rank; those with none need not be asked.
        audited: whether it is the sum of an audit.
    """

    step: Count
    counted: list[list[Count]] = []
    audited: bool = False


class ShareVersion(Request[VersionShared], frozen=True, kw_only=True):
    """Give all ranks the parameters of `version`, at which the first one is.

    `advanced`: by an update, so that an audit goes on; otherwise it is given up.
    """

    version: Count
    advanced: bool


class Forward(Request[Forwarded], frozen=True, kw_only=True):
    """Run a microbatch through a stage that is not the last.

    Payload: the boundary tensor; on the first stage the tokens (B, T+1) as `specs.tokens` has them
    sent, or nothing if a corpus was opened: the samples of the id are read, and answered as well.
    `tokens`: on another stage, the same tokens, where data is packed.
    """

    step: Count
    microbatch: Count
    attempt: Count = 0
    keep_graph: bool = True
    tokens: bytes = b""


class ForwardBackward(Request[LossComputed], frozen=True, kw_only=True):
    """Run a microbatch through the last stage, and back; its gradient is accumulated.

    The gradient is that of the *sum* of the tokens' losses. Payload: the boundary tensor; none
    if the stage is the first as well. `tokens`: (B, T+1), as they are sent; none if the
    stage is the first and has a corpus.
    """

    step: Count
    microbatch: Count
    tokens: bytes


class Backward(Request[BackwardDone], frozen=True, kw_only=True):
    """Run a microbatch back through a stage that is not the last; accumulate its gradient.

    Payloads: the gradient of the output; then, needed only if the graph was not kept, the
    input as `Forward` got it (not on a first stage with a corpus). `tokens`: as `Forward` got them.
    """

    step: Count
    microbatch: Count
    tokens: bytes = b""


class Pass(Request[Passed], frozen=True, kw_only=True):
    """Run a microbatch through the stage once more, or a held-out one.

    Fields:
        microbatch: held-out ones are numbered from -1 down.
        into: `less`: a counted microbatch is taken out of the sum. `audit`: its gradient is added
            to the audit's sum, at the kept version, and what the audited member has sent of it is
            compared; the step under way does not change. `loss`: it is run forward alone, at the
            version's own parameters, and nothing is counted.

    Payloads and `tokens`: for `less` as for `Backward`, input included; in the last stage the
    boundary tensor alone (none if it is the first as well) and `tokens`. For `audit` the same,
    then, as the member has sent them, the boundary tensor (not on the last stage) and the gradient
    of the input (not on the first). For `loss` as for `Forward`, with `tokens` in the last stage.
    """

    step: Count
    microbatch: int
    into: Literal["less", "audit", "loss"]
    tokens: bytes = b""


class Contribute(Request[Contributed], frozen=True, kw_only=True):
    """Encode this replica's gradient sum in segments [bounds[i], bounds[i+1]).

    A new attempt starts from the same gradient and residual as the one before.

    Fields:
        masks: where the rule is secret: the seeds of our masks, and whether each is added; as many
            as there are members. Never given twice.
        tokens: of the whole step, in all replicas; needed where the rule is secret.
    """

    step: Count
    attempt: Count
    bounds: list[int]
    masks: list[tuple[bytes, bool]] = []
    tokens: Count = 0


class Reduce(Request[Reduced], frozen=True, kw_only=True):
    """Aggregate one segment over the members' contributions, in the members' order.

    Payloads: the segment as each *other* member contributed it, in order; place `own` is taken
    from the last `Contribute`, as encoded, so the result does not depend on who owns the segment.
    Without `own` it is the segment of an audit (`KeepVersion`): as all members contributed it, and
    then the sum that its owner has broadcast, which is compared.

    Fields:
        microbatches: number of microbatches in each member's contribution.
    """

    step: Count
    attempt: Count
    segment: Count
    microbatches: Annotated[list[Count], Meta(min_length=1)]
    own: Count | None


class DecodeSum(Request[SumDecoded], frozen=True, kw_only=True):
    """Decode the sum of a segment of the last `Contribute`, as its owner broadcast it, and check it
    against `squared_norm`, which the owner claims. `Apply` need not do it again.

    Payload: the sum.
    """

    step: Count
    attempt: Count
    segment: Count
    squared_norm: float


class Apply(Request[Applied], frozen=True, kw_only=True):
    """Make version `step` + 1 from the segments' sums, as every replica got them; without segments
    from this replica's own sum, in fp32, without the wire: it is the stage's only one.

    Payloads: the sum of every segment, in order. `squared_norms`: as their owners reported.
    `tokens`: of the whole step, in all replicas. `seeds`: where the rule is secret, of the masks
    that are still in the sums, one for each member; an empty one stands for no mask.
    `learning_rate`: by an amendment; None: by the schedule of `OpenStage`. In local rounds it is
    that of the steps inside the next round.
    """

    step: Count
    attempt: Count = 0
    bounds: list[int] = []
    squared_norms: list[float] = []
    tokens: Positive
    seeds: list[bytes] = []
    learning_rate: Rate | None = None


class KeepVersion(Request[VersionKept], frozen=True, kw_only=True):
    """Copy the parameters that the gradient of `step` is computed at, to audit a contribution to
    that step after the version has gone on. One copy is kept; another one replaces it.

    It takes twice the bytes of the parameters until `CompareContribution` or another version is
    loaded.

    Fields:
        segment: [bounds[segment], bounds[segment+1]), whose sum is made again later: the norm that
            it usually has is kept, too. None: none is.
    """

    step: Count
    bounds: list[int] = []
    segment: Count | None = None


class CompareContribution(Request[ContributionCompared], frozen=True, kw_only=True):
    """Compare the audit's sum with what the audited member contributed; ends the audit.

    Payloads: its contribution to every segment [bounds[i], bounds[i+1]), as it was sent.
    """

    step: Count
    bounds: list[int]


class HashVersion(Request[Hashed], frozen=True, kw_only=True):
    """Compute the hash of the current version; passes go on meanwhile. One at a time."""

    version: Count


class Save(Request[Saved], frozen=True, kw_only=True):
    """Write the current version to `path`; training goes on meanwhile.

    `durable` waits for the disk. One save at a time.
    """

    version: Count
    path: str
    durable: bool = True


class Load(Request[Loaded], frozen=True, kw_only=True):
    """Take over a checkpoint of this stage, verified before anything changes.

    `learning_rate`: of the steps inside the round that begins there, by an amendment; None: by the
    schedule of `OpenStage`.
    """

    path: str
    version: Count
    expected_hash: str | None = None
    learning_rate: Rate | None = None


class LoadStart(Request[Loaded], frozen=True, kw_only=True):
    """Begin with the parameters of an imported model: version 0, with nothing accumulated. Where
    the model has adapters these are frozen, and the version stays.

    Fields:
        path: the file, as `client.compute.starting` writes it; digest: its BLAKE2b-256, hex.
    """

    path: str
    digest: str


class Probe(Request[Probed], frozen=True, kw_only=True):
    """Measure a device; no stage needs to be open."""

    sizes: list[Annotated[int, Meta(ge=1, le=16_384)]]
    """Of the matrices to multiply; empty: say what the device is, and measure nothing."""
    device: str = "auto"
    threads: Positive = 1


class SetThreads(Request[ThreadsSet], frozen=True, kw_only=True):
    """Set the number of CPU threads from now on; no stage needs to be open."""

    threads: Positive


AnyRequest = (
    OpenStage
    | Forward
    | ForwardBackward
    | Backward
    | Pass
    | Contribute
    | Reduce
    | DecodeSum
    | Apply
    | HashVersion
    | KeepVersion
    | CompareContribution
    | Save
    | Load
    | LoadStart
    | Probe
    | SetThreads
    | JoinGroup
    | GatherSum
    | ShareVersion
)

_REPLY_TYPES: dict[type, type] = {
    request: get_args(vars(request)["__orig_bases__"][0])[0] for request in get_args(AnyRequest)
}


def reply_type(request: Request[Any]) -> type[Reply]:
    """The type that answers this request, unless `Failed` does."""
    return _REPLY_TYPES[type(request)]
