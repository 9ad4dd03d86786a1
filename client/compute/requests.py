"""The node's requests to its worker, beside the tasks of the protocol, and their replies.

A task (`protocol.pipeline.effects.Task`) is a request as it stands: the payloads that it names by
keys travel beside it, in its order, and those that it yields beside its `Outcome`. Other requests
have replies of their own. Requests are executed in order and answered in order, except that `Save`
and `HashTask` are answered when they are done. A request that fails is answered by `Failed` and has
changed nothing, but for a `Load`. Imports no torch.

Payloads of the passes of a microbatch, in order: the gradient of the stage's output, for what runs
back and has no head; the input; the tokens (B, T+1) as `specs.tokens` has them sent, where a later
stage needs them; and for an audit what the member has sent, on and back. The first stage's input
are the tokens, and with a corpus it has none: it reads the microbatch's samples, and its forward
answers them as well. `BackwardTask` needs input and tokens only if the outcome of its `ForwardTask`
did not say that the graph is kept, or if it was dropped since.

Shapes: B sequences per microbatch, T tokens per sequence, C width.
"""

from typing import Annotated, Generic, TypeVar

import msgspec
from msgspec import Meta

from client.compute.errors import FailureKind
from client.compute.memory import Fit
from client.config import Settings
from model_zoo.specs.precision import Compute, Precision, precision_on
from protocol.manifest import Manifest
from protocol.pipeline.effects import Outcome, Task

Count = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
Rate = Annotated[float, Meta(ge=0, le=10)]


class Reply(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Base of the replies to what is no task."""


class Done(Reply, frozen=True, kw_only=True):
    """What was asked for is done; `words` are for the owner."""

    words: str = ""


class Saved(Reply, frozen=True, kw_only=True):
    """The checkpoint is complete on disk. Its data begin at ``data_start`` of the file, and their
    leaves have these digests."""

    hash: str
    data_start: int
    digests: list[bytes]


class Probed(Reply, frozen=True, kw_only=True):
    """The device and its measured speed; by default nothing is known of it."""

    device: str = ""
    threads: int = 0
    """CPU threads that it was asked about."""
    identity: str = ""
    """What its speed follows from: the device, its memory, its driver and the build of torch."""
    peaks: dict[Precision, float] = {}
    """FLOP/s of the best product of matrices in each type of numbers; empty: not measured."""
    memory_total_bytes: int = 0
    memory_available_bytes: int = 0
    platform: str = "cpu"
    """`cuda`, `rocm` or `mps`; or `cpu`."""
    unused: dict[str, str] = {}
    """GPUs that are there and cannot train, with the reason."""

    @property
    def on_gpu(self) -> bool:
        """Whether the memory is a GPU's."""
        return self.platform != "cpu"

    @property
    def has_host(self) -> bool:
        """Whether the machine has other memory than that which stages may take: an Apple GPU
        shares the processor's."""
        return self.on_gpu and self.platform != "mps"

    def peak_flops(self, compute: Compute) -> float:
        """Return the FLOP/s that the device reaches in a run's type of numbers; 0: not measured."""
        fast = self.on_gpu and self.peaks.get("bf16", 0.0) > self.peaks.get("fp32", 0.0)
        return self.peaks.get(precision_on(compute, fast_in_bf16=fast), 0.0)


class Failed(Reply, frozen=True, kw_only=True):
    """Why nothing was done. `part` is the offending payload's place, if it was one."""

    kind: FailureKind
    message: str
    part: int | None = None


Answer = Reply | Outcome
ReplyT = TypeVar("ReplyT", bound=Reply)


class Request(msgspec.Struct, Generic[ReplyT], frozen=True, tag=True):
    """Base of all requests; the parameter is the type of the reply."""


class OpenStage(Request[Done], frozen=True, kw_only=True):
    """Hold `stage` of a run at version 0, drawn from the seed; replaces the stage that was open.
    The reply says whether blocks run compiled, or why not; nothing where nobody asked for it.

    Fields:
        swarm: hex id, written into checkpoints.
        peer: our id; of the parts of a sum, the one with it in its key is our own.
        manifest: of the run. Where it has starts the weights, or what is frozen beside adapters,
            come from `LoadStart`; until then they are zero.
        settings: the owner's: devices, each with the whole stage; limits; whether blocks are
            compiled. Where they name no number of threads fewer are used if that is as fast.
        threads: CPU threads.
    """

    swarm: str
    peer: str = ""
    manifest: Manifest
    stage: Count
    fit: Fit = Fit(4)
    settings: Settings = Settings(device="cpu", threads=1)
    threads: Positive = 1
    compile_folder: str = ""
    """Of what was compiled, now and in earlier sessions."""
    corpus: str = ""
    """Folder of the training data, or of leaves of them, for the first stage."""


class Save(Request[Saved], frozen=True, kw_only=True):
    """Write the current version to `path`; training goes on meanwhile.

    `durable` waits for the disk. One save at a time.
    """

    version: Count
    path: str
    durable: bool = True


class Load(Request[Done], frozen=True, kw_only=True):
    """Take over a checkpoint of this stage, with nothing accumulated; without a version from before
    if its data turn out to be damaged.

    `learning_rate`: of the steps inside the round that begins there, by an amendment; None: by the
    schedule of `OpenStage`.
    """

    path: str
    version: Count
    expected_hash: str | None = None
    learning_rate: Rate | None = None


class LoadStart(Request[Done], frozen=True, kw_only=True):
    """Begin with the parameters of an imported model, in a file as `client.compute.starting` writes
    it, with the BLAKE2b-256 ``digest``, hex: version 0, with nothing accumulated. Where the model
    has adapters these are frozen, and the version stays."""

    path: str
    digest: str


class Probe(Request[Probed], frozen=True, kw_only=True):
    """Measure a device, or several as one; no stage needs to be open."""

    sizes: list[Annotated[int, Meta(ge=1, le=16_384)]]
    """Of the matrices to multiply; empty: say what the device is, and measure nothing."""
    device: str = "auto"
    threads: Positive = 1


class Ping(Request[Done], frozen=True):
    """Answer when everything before is done; no stage needs to be open."""


AnyRequest = Task | OpenStage | Save | Load | LoadStart | Probe | Ping
AnyAnswer = Outcome | Done | Saved | Probed | Failed
