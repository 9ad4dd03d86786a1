"""The worker's replies; `requests` assigns one to each request.

Every reply has the time that the worker computed for it. Payloads travel beside the reply, in the
order that its docstring names. Imports no torch.
"""

import msgspec

from client.compute.errors import FailureKind


class Reply(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Base of all replies; `seconds` is compute time without queueing and transport."""

    seconds: float = 0.0


class StageOpened(Reply, frozen=True, kw_only=True):
    """The stage is at version 0, drawn from the seed.

    `state_bytes` counts every buffer that is as long as the parameters; `hash` is the hex
    BLAKE2b-256 of the version's state. `compiled` says whether blocks run compiled, or why not, in
    words for the owner; empty: nobody asked for it.
    """

    parameters: int
    state_bytes: int
    hash: str
    compiled: str = ""


class Forwarded(Reply, frozen=True, kw_only=True):
    """One payload: the boundary tensor for the next stage; then the tokens, if they were read
    from the corpus."""

    graph_kept: bool


class LossComputed(Reply, frozen=True, kw_only=True):
    """The sum of the tokens' losses in nats; one payload, the gradient for the stage before,
    unless there is none."""

    loss_sum: float
    tokens: int


class BackwardDone(Reply, frozen=True, kw_only=True):
    """The gradient is accumulated; one payload, the gradient for the stage before, unless
    there is none. `recomputed` says that the graph was gone."""

    recomputed: bool


class Passed(Reply, frozen=True, kw_only=True):
    """A pass beside those of the step. Payloads: of a held-out microbatch as for `Forwarded`, none
    from the last stage.

    `loss_sum` is that of the learned tokens in nats, in the last stage. In an audit `activation`
    and `gradient` are the relative L2 distances of what the member sent on, and back, from what
    comes out here; 0 where there is none.
    """

    loss_sum: float = 0.0
    activation: float = 0.0
    gradient: float = 0.0


class Contributed(Reply, frozen=True, kw_only=True):
    """One payload per segment, empty for an empty segment; the ids that the sum consists of."""

    microbatches: list[int]


class Reduced(Reply, frozen=True, kw_only=True):
    """One payload: the segment's sum. `squared_norm` is that of the sum as receivers decode it.

    In an audit no payload: `deviation` is the L2 distance of the owner's sum from the one that was
    made again, as sent, relative to the latter.
    """

    squared_norm: float = 0.0
    deviation: float = 0.0


class SumDecoded(Reply, frozen=True, kw_only=True):
    """The sum is sound and waits for `Apply`."""


class Applied(Reply, frozen=True, kw_only=True):
    """The stage is at `version`; `grad_norm` is the mean gradient's norm before clipping. `hash` is
    empty where `HashVersion` has to ask for it: the state is not small."""

    version: int
    hash: str
    grad_norm: float


class Hashed(Reply, frozen=True, kw_only=True):
    """The hash of the version, hex."""

    version: int
    hash: str


class VersionKept(Reply, frozen=True, kw_only=True):
    """The step's parameters are copied; nothing is recomputed yet."""


class ContributionCompared(Reply, frozen=True, kw_only=True):
    """The audit is over. `deviation` is the L2 distance of the contribution from the recomputed
    sum, relative to that sum, less what the codec explains, which is `explained`. `along` is the
    part of the whole distance that lies in the sum's direction: -1 where nothing was contributed,
    0.02 where 2 % too much; less what rounding makes of it by chance in a small share of a step."""

    deviation: float
    along: float
    explained: float


class Saved(Reply, frozen=True, kw_only=True):
    """The checkpoint is complete on disk; digests are BLAKE2b-256 of its 2 MiB chunks."""

    version: int
    path: str
    hash: str
    size_bytes: int
    chunk_digests: list[bytes]


class Loaded(Reply, frozen=True, kw_only=True):
    """The stage is at the checkpoint's version, with nothing accumulated."""

    version: int
    hash: str


class MatmulRate(msgspec.Struct, frozen=True):
    """Measured multiply-add rate of one square matrix size."""

    size: int
    dtype: str
    flop_per_s: float


class Probed(Reply, frozen=True, kw_only=True):
    """The device and its measured speed."""

    device: str
    identity: str = ""
    """What its speed follows from: the device, its memory, its driver and the build of torch."""
    rates: list[MatmulRate]
    memory_total_bytes: int
    memory_available_bytes: int
    copy_bytes_per_s: float
    """Within the device's memory."""
    to_device_bytes_per_s: float = 0.0
    """From the host's memory into it; on the processor one copy is like the other."""
    to_host_bytes_per_s: float = 0.0
    platform: str = "cpu"
    """`cuda`, `rocm` or `mps`; or `cpu`."""
    unused: dict[str, str] = {}
    """GPUs that are there and cannot train, with the reason."""


class Failed(Reply, frozen=True, kw_only=True):
    """The request changed nothing. `part` is the offending payload's place, if it was one; `parts`
    are the places of all, where a request looks at each."""

    kind: FailureKind
    message: str
    part: int | None = None
    parts: tuple[int, ...] = ()


class ThreadsSet(Reply, frozen=True, kw_only=True):
    """Later requests are computed with this number of threads."""


class GroupJoined(Reply, frozen=True, kw_only=True):
    """The ranks of the group have found each other."""


class SumGathered(Reply, frozen=True, kw_only=True):
    """The gradient sums of the ranks are in that of the first; the others' are empty."""


class VersionShared(Reply, frozen=True, kw_only=True):
    """This rank has the first one's version; `digest` is the hex BLAKE2b-256 of its parameters."""

    digest: str


AnyReply = (
    ThreadsSet
    | GroupJoined
    | SumGathered
    | VersionShared
    | StageOpened
    | Forwarded
    | LossComputed
    | BackwardDone
    | Passed
    | Contributed
    | Reduced
    | SumDecoded
    | Applied
    | Hashed
    | VersionKept
    | ContributionCompared
    | Saved
    | Loaded
    | Probed
    | Failed
)
