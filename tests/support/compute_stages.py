"""Small stages for the tests of the compute package, run in this process without a worker."""

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from msgspec.structs import replace

from client.compute.executor import Executor
from client.compute.memory import Fit, MemoryNeed, memory_need
from client.compute.payload import Buffer
from client.compute.replica import LocalReplica
from client.compute.requests import Answer, AnyRequest, Failed, OpenStage
from client.config import Settings
from model_zoo.specs.architecture import Experts, Lora
from model_zoo.specs.data import DataSpec
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.optimizer import OptimizerSpec
from protocol.manifest import Manifest, StageCost, StageStart
from protocol.pipeline.effects import BackwardTask, ForwardTask, LossTask
from protocol.wire.envelope import Signer

SEQUENCES, TOKENS, SEED = 3, 16, 7
MICROBATCHES = 6
"""Of a step, in all replicas."""
DEVICE = os.environ.get("TEST_DEVICE", "cpu")
"""Where small stages compute; tests that compare with a reference's bits need the processor."""
MODELS = {
    "gpt": ModelSpec("gpt", 4, 32, 4, 4, 64, TOKENS, 61),
    "llama": ModelSpec("llama", 4, 32, 4, 2, 48, TOKENS, 61),
    "mixtral": ModelSpec(
        "mixtral", 4, 32, 4, 2, 24, TOKENS, 61, experts=Experts(4, 2, balance=0.05)
    ),
}
MODELS |= {
    name: replace(MODELS["llama"], architecture=name) for name in ("gemma2", "phi3", "starcoder2")
}
MODELS["gpt_neox"] = replace(MODELS["gpt"], architecture="gpt_neox")
MODELS["gpt-2"] = replace(MODELS["gpt"], bias=True, gelu="new")
MODELS["lora"] = replace(
    MODELS["llama"], lora=Lora(4, 8.0, ("self_attn.q_proj", "self_attn.v_proj", "mlp.up_proj"))
)
OPTIMIZER = OptimizerSpec(lr=1e-2, min_lr=1e-3, warmup_steps=2, decay_steps=50, beta2=0.95)


class LocalWorker:
    """An executor that is called like a worker; replies are collected before it returns, which has
    to be within ``limit_s``."""

    def __init__(self, *, limit_s: float = 30.0) -> None:
        self.executor, self._limit_s = Executor(), limit_s

    def ask(self, request: AnyRequest, *payloads: Buffer) -> tuple[Any, list[bytes]]:
        """The reply, which may be `Failed`, and its payloads."""
        answered = threading.Event()
        answers: list[tuple[Answer, list[bytes]]] = []

        def answer(reply: Answer, sent: Sequence[Buffer]) -> None:
            answers.append((reply, [bytes(payload) for payload in sent]))
            answered.set()

        self.executor.execute(request, payloads, answer)
        assert answered.wait(self._limit_s)
        assert len(answers) == 1
        return answers[0]

    def call(self, request: AnyRequest, *payloads: Buffer) -> tuple[Any, list[bytes]]:
        """As `ask`, for requests that must succeed."""
        reply, sent = self.ask(request, *payloads)
        assert not isinstance(reply, Failed), reply
        return reply, sent

    def fails(self, request: AnyRequest, *payloads: Buffer) -> Failed:
        """As `ask`, for requests that must fail."""
        reply, sent = self.ask(request, *payloads)
        assert isinstance(reply, Failed), reply
        assert not sent
        return reply

    @property
    def residual(self) -> torch.Tensor:
        """What encoding took from the contributions to earlier rounds."""
        assert self.executor._opened is not None
        found = self.executor._opened.averager._residual
        assert found is not None
        return found

    @property
    def replica(self) -> Any:
        """The opened stage's state, to look at."""
        assert self.executor._opened is not None
        return self.executor._opened.replica


_OF_THE_RUN = {
    "seed": "seed",
    "optimizer": "optimizer",
    "aggregation": "aggregation",
    "local_rounds": "local_rounds",
    "boundary": "boundary_codec",
    "averaging": "averaging_codec",
    "sequences": "sequences_per_microbatch",
    "microbatches": "microbatches_per_step",
    "precision": "compute",
    "steps": "steps",
    "data": "data",
}
"""Options of a small run, and what a manifest calls them."""
_OF_THE_FIT = {
    "graphs_kept": "graphs",
    "reruns_blocks": "reruns_blocks",
    "offload": "offloaded_bytes",
}
"""Options of how a stage fits, and what `Fit` calls them."""
_OF_THE_OWNER = "device", "compile", "vram_share"


def small_run(
    cut: Sequence[int], *, model: str | ModelSpec = "gpt", imported: bool = False, **options: Any
) -> Manifest:
    """The manifest of a run of a small model, cut into stages of so many layers."""
    run = Manifest(
        protocol=1,
        name="small",
        founder=Signer(bytes(32)).peer,
        created=0,
        seed=SEED,
        model=MODELS[model] if isinstance(model, str) else model,
        stages=tuple(StageCost(layers, 0.0, 1, 0.0, 0.0, 0.0) for layers in cut),
        sequences_per_microbatch=SEQUENCES,
        microbatches_per_step=MICROBATCHES,
        steps=100,
        optimizer=OPTIMIZER,
        data=DataSpec("bytes", 1000, "0" * 64),
        boundary_codec="fp32",
        averaging_codec="fp32",
        start=(StageStart(1, "0" * 64),) * len(cut) if imported else (),
    )
    return replace(run, **{_OF_THE_RUN[name]: value for name, value in options.items()})


def open_request(
    stage: int,
    cut: Sequence[int],
    *,
    model: str | ModelSpec = "gpt",
    imported: bool = False,
    **options: Any,
) -> OpenStage:
    """A request for one stage of a small run."""
    of_run, of_fit, of_owner = (
        {name: options.pop(name) for name in [*options] if name in names}
        for names in (_OF_THE_RUN, _OF_THE_FIT, _OF_THE_OWNER)
    )
    run = small_run(cut, model=model, imported=imported, **of_run)
    fit = Fit(**{"graphs": 4, **{_OF_THE_FIT[name]: value for name, value in of_fit.items()}})
    settings = Settings(**{"device": DEVICE, "compile": "off", "threads": 1, **of_owner})
    named = {"swarm": "ab" * 32, "manifest": run, "stage": stage, "fit": fit, "settings": settings}
    return OpenStage(**named | options)


def opened(stage: int, cut: Sequence[int], **options: Any) -> LocalWorker:
    worker = LocalWorker()
    worker.call(open_request(stage, cut, **options))
    return worker


@dataclass(frozen=True)
class Passed:
    """A microbatch that went through all stages and back."""

    loss: float
    inputs: list[tuple[bytes, ...]]
    """What each stage was given on the way forward."""
    gradients: list[bytes]
    """Of the output of each stage but the last."""


class Chain:
    """Workers that hold the stages of one model in a row.

    Args:
        cut: layers of each stage.
        tokens: of a microbatch.
        beside: whether the stages in between need the tokens, too.
    """

    def __init__(
        self,
        cut: Sequence[int],
        tokens: Callable[[int], bytes] | None = None,
        *,
        beside: bool = False,
        **options: Any,
    ) -> None:
        self.workers = [opened(stage, cut, **options) for stage in range(len(cut))]
        self.tokens, self.beside = tokens or tokens_of, beside

    def forward(self, request: AnyRequest, tokens: bytes) -> list[tuple[bytes, ...]]:
        """Go forward as far as the last stage; what each stage is given."""
        last = len(self.workers) - 1
        inputs: list[tuple[bytes, ...]] = [(tokens,)]
        for stage, worker in enumerate(self.workers[:-1], start=1):
            _, (boundary,) = worker.call(request, *inputs[-1])
            inputs.append((boundary, tokens) if self.beside or stage == last else (boundary,))
        return inputs

    def run(
        self, microbatch: int, *, step: int = 0, tokens: bytes = b"", keep_graph: bool = True
    ) -> Passed:
        """One microbatch through all stages and back; graphs that are not kept are run again."""
        how = {"step": step, "microbatch": microbatch}
        inputs = self.forward(ForwardTask(**how), tokens or self.tokens(microbatch))
        reply, gradients = self.workers[-1].call(LossTask(**how), *inputs[-1])
        for worker, given in reversed(list(zip(self.workers[:-1], inputs, strict=False))):
            if not keep_graph:
                worker.replica.graphs.clear()
            sent = worker.call(BackwardTask(**how), gradients[0], *(() if keep_graph else given))[1]
            gradients = [*sent, *gradients]
        return Passed(reply.loss_sum, inputs, gradients)

    @property
    def sums(self) -> list[torch.Tensor]:
        """Copies of the gradient sums of all stages."""
        return [worker.replica.gradient_sum.clone() for worker in self.workers]

    def named_sums(self) -> dict[str, torch.Tensor]:
        """The gradient sums of all stages by the parameters' names."""
        return {
            name: found
            for worker in self.workers
            for name, found in worker.replica.flat.views(worker.replica.gradient_sum).items()
        }


def buffers_of(replica: Any) -> list[torch.Tensor]:
    """Every tensor (N,) that a replica holds."""
    held = [*replica.state_tensors, replica.gradient_sum, replica.flat.gradients]
    inner = isinstance(replica, LocalReplica) and (replica.flat.values, *replica.inner.vectors)
    return [*held, *(inner or ())]


def need_of(request: OpenStage, *, host: bool = False) -> MemoryNeed:
    """The memory that a stage needs, as predicted; ``host``: beside a GPU."""
    return memory_need(
        request.manifest,
        request.stage,
        request.fit.graphs,
        reruns_blocks=request.fit.reruns_blocks,
        offload=request.fit.offloaded_bytes > 0,
        host=host,
    )


def of_step(step: int) -> range:
    """The microbatches of a step, where they are numbered through all steps."""
    return range(step * MICROBATCHES, (step + 1) * MICROBATCHES)


def tokens_of(microbatch: int, vocab: int = 61) -> bytes:
    """Random tokens (B, T+1) of a microbatch, as on the wire."""
    generator = np.random.default_rng(microbatch)
    return generator.integers(vocab, size=(SEQUENCES, TOKENS + 1), dtype=np.uint16).tobytes()


def token_tensors(data: bytes) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets (B, T)."""
    tokens = np.frombuffer(data, "<u2").astype(np.int64).reshape(SEQUENCES, TOKENS + 1)
    tensor = torch.from_numpy(tokens)
    return tensor[:, :-1], tensor[:, 1:]


def relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """|actual - expected| / |expected|."""
    return float((actual - expected).norm() / expected.norm())
