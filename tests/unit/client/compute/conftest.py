"""What all tests of the compute package share."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from model_zoo.export import export_hf
from model_zoo.huggingface.imports import Imported, open_folder
from model_zoo.stages import build_whole
from tests.support.compute_stages import MODELS


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """One torch thread: the machine is shared."""
    torch.set_num_threads(1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder in bf16, as most models are published."""
    state = build_whole(MODELS["llama"], seed=99).state_dict()
    return export_hf(MODELS["llama"], state, tmp_path / "model", dtype="bf16")


@pytest.fixture
def imported(folder: Path) -> Iterator[Imported]:
    with open_folder(folder) as found:
        yield found
