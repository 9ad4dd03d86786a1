"""Small models that the tests of the model zoo share; one torch thread."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from model_zoo.datasets.corpus import Corpus
from model_zoo.specs.model import ModelSpec
from model_zoo.threads import limited_threads
from tests.support.small_models import SPECS
from tests.support.texts import corpus_of


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
