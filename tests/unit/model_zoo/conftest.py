"""Small models that the tests of the model zoo share; one torch thread."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from model_zoo.datasets.corpus import Corpus
from model_zoo.specs.architecture import Experts, Rope, Scales
from model_zoo.specs.families import ARCHITECTURES
from model_zoo.specs.model import ModelSpec
from model_zoo.threads import limited_threads
from tests.support.texts import corpus_of

SPECS = {
    "gpt": ModelSpec("gpt", 4, 32, 4, 4, 64, context=16),
    "gpt-bias": ModelSpec("gpt", 4, 32, 4, 4, 64, context=16, bias=True),
    "llama": ModelSpec("llama", 4, 32, 4, 2, 48, context=16, rope_theta=500.0),
    "qwen3": ModelSpec(
        "qwen3",
        4,
        32,
        4,
        2,
        48,
        context=16,
        norm_eps=1e-6,
        head_dim=12,
        rope=Rope("llama3", 8.0, 1.0, 4.0, 8),
    ),
    "olmo2": ModelSpec("olmo2", 4, 32, 4, 2, 48, context=16),
    "mixtral": ModelSpec(
        "mixtral", 4, 32, 4, 2, 24, context=16, experts=Experts(4, 2, balance=0.02)
    ),
}

SPECS["gemma2"] = ModelSpec(
    *("gemma2", 4, 32, 4, 2, 48, 16),
    head_dim=12,
    window=6,
    full_every=2,
    scales=Scales(attention=0.2, attention_cap=5.0, logits_cap=3.0),
)
SPECS["gpt_neox"] = ModelSpec("gpt_neox", 4, 32, 4, 4, 64, context=16, rope=Rope(dims=4))
COVERED = {spec.facts.model for spec in SPECS.values()}
SPECS |= {
    name: ModelSpec(name, 4, 32, 4, 4, 64, context=16)
    for name, family in ARCHITECTURES.items()
    if family.model not in COVERED
}
"""So every test of this folder runs for every file of models."""


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    with limited_threads(1):
        yield


@pytest.fixture(params=list(SPECS.values()), ids=list(SPECS))
def spec(request: pytest.FixtureRequest) -> ModelSpec:
    result: ModelSpec = request.param
    return result


@pytest.fixture
def tokens() -> torch.Tensor:
    return torch.randint(0, 256, (3, 17), generator=torch.Generator().manual_seed(1))


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    path = tmp_path / "text"
    path.write_bytes(b"the quick brown fox jumps over the lazy dog. " * 100)
    return corpus_of(str(path))
