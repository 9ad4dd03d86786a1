"""Small stages for the tests of the compute package, run in this process without a worker."""

import os
import threading
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import torch
from msgspec.structs import replace

from client.compute.executor import Executor
from client.compute.payload import Buffer
from client.compute.requests import Answer, AnyRequest, Failed, OpenStage
from model_zoo.specs.architecture import Experts, Lora
from model_zoo.specs.codec import AveragingCodec, Codec
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.optimizer import OptimizerSpec
from model_zoo.stages import Stage
from model_zoo.whole import build_whole

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
    """An executor that is called like a worker; replies are collected before it returns."""

    def __init__(self, *, departs: bool | None = None) -> None:
        self.executor = Executor(departs=departs)

    def ask(self, request: AnyRequest, *payloads: Buffer) -> tuple[Any, list[bytes]]:
        """The reply, which may be `Failed`, and its payloads."""
        answered = threading.Event()
        answers: list[tuple[Answer, list[bytes]]] = []

        def answer(reply: Answer, sent: Sequence[Buffer]) -> None:
            answers.append((reply, [bytes(payload) for payload in sent]))
            answered.set()

        self.executor.execute(request, payloads, answer)
        assert answered.wait(30)
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
    def replica(self) -> Any:
        """The opened stage's state, to look at."""
        assert self.executor._opened is not None
        return self.executor._opened.replica


def open_request(
    stage: int,
    cut: Sequence[int],
    *,
    model: str = "gpt",
    boundary: Codec = "fp32",
    averaging: AveragingCodec = "fp32",
    **changes: Any,
) -> OpenStage:
    """A request for one stage of a small model."""
    request = OpenStage(
        swarm="ab" * 32,
        model=MODELS[model],
        layers_per_stage=list(cut),
        stage=stage,
        seed=SEED,
        optimizer=OPTIMIZER,
        boundary_codec=boundary,
        averaging_codec=averaging,
        sequences=SEQUENCES,
        tokens=TOKENS,
        microbatches=MICROBATCHES,
        device=DEVICE,
    )
    return msgspec.structs.replace(request, **changes)


def opened(stage: int, cut: Sequence[int], **options: Any) -> LocalWorker:
    """A worker with that stage open."""
    worker = LocalWorker()
    worker.call(open_request(stage, cut, **options))
    return worker


def tokens_of(microbatch: int, vocab: int = 61) -> bytes:
    """Random tokens (B, T+1) of a microbatch, as on the wire."""
    generator = np.random.default_rng(microbatch)
    return generator.integers(vocab, size=(SEQUENCES, TOKENS + 1), dtype=np.uint16).tobytes()


def token_tensors(data: bytes) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets (B, T)."""
    tokens = np.frombuffer(data, "<u2").astype(np.int64).reshape(SEQUENCES, TOKENS + 1)
    tensor = torch.from_numpy(tokens)
    return tensor[:, :-1], tensor[:, 1:]


def whole_model(model: str) -> Stage:
    """The uncut model with the same initial weights."""
    return build_whole(MODELS[model], SEED)


def optimizer_config() -> OptimizerSpec:
    """The optimizer of all small stages."""
    return OPTIMIZER


def relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """|actual - expected| / |expected|."""
    return float((actual - expected).norm() / expected.norm())
