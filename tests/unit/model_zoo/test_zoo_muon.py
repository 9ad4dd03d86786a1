"""Muon's updates are orthogonal, and have the same bits in whatever order sums are made."""

import math

import numpy as np
import pytest
import torch

from model_zoo.flat import FlatParameters
from model_zoo.optimizers import newton_schulz
from model_zoo.optimizers.muon import FlatMuon
from model_zoo.optimizers.newton_schulz import orthogonal, roughly_orthogonal
from model_zoo.specs.architecture import Experts
from model_zoo.specs.matrices import Matrix, between, hidden_matrices, largest_matrix, rows_of
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.optimizer import OptimizerSpec
from model_zoo.specs.slices import slices, whole_slice
from model_zoo.specs.state import size, stage_layout
from model_zoo.stages import build_stage
from model_zoo.threads import limited_threads

SPEC = OptimizerSpec(1e-3, 1e-4, beta1=0.95, beta2=0.95, name="muon")
MIXTURE = ModelSpec("mixtral", 2, 16, 4, 2, 24, 8, experts=Experts(4, 2))


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def in_fp32(matrix: torch.Tensor) -> torch.Tensor:
    """The iteration as others run it."""
    x = matrix / matrix.norm()
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x


@pytest.mark.parametrize("shape", [(40, 40), (8, 300), (300, 8), (1, 7), (5, 1)])
@pytest.mark.parametrize("scale", [1e-35, 1.0, 1e30])
def test_singular_values_come_near_one(shape: tuple[int, int], scale: float) -> None:
    matrix = random(*shape) * scale
    result = orthogonal(matrix)
    values = torch.linalg.svdvals(result)
    assert result.shape == matrix.shape
    assert float(values.min()) > 0.2
    assert float(values.max()) < 1.25
    assert float((result * matrix.sign()).sum()) > 0


def test_nothing_becomes_nothing() -> None:
    assert not orthogonal(torch.zeros(3, 4)).any()


@pytest.mark.parametrize("shape", [(40, 40), (8, 300), (300, 8), (1, 7)])
@pytest.mark.parametrize("scale", [1e-15, 1.0, 1e15])
def test_where_bits_do_not_count_it_is_nearly_the_same(
    shape: tuple[int, int], scale: float
) -> None:
    matrix = random(*shape) * scale
    roughly = roughly_orthogonal(matrix)
    assert roughly.dtype == torch.float32
    torch.testing.assert_close(roughly, orthogonal(matrix).float(), rtol=0, atol=1e-5)
    assert not roughly_orthogonal(torch.zeros(shape)).any()


@pytest.mark.parametrize("shape", [(64, 512), (512, 64), (96, 96)])
def test_the_order_of_sums_is_of_no_account(shape: tuple[int, int]) -> None:
    """Other columns in turn, and rows: sums of the same terms in another order."""
    matrix, generator = random(*shape), torch.Generator().manual_seed(1)
    rows, columns = (torch.randperm(count, generator=generator) for count in shape)
    turned = orthogonal(matrix[rows][:, columns])
    assert torch.equal(turned, orthogonal(matrix)[rows][:, columns])
    if shape[0] != shape[1]:
        assert torch.equal(orthogonal(matrix.T), orthogonal(matrix).T)
    # Without rounding the factors it is of account.
    wide = matrix if shape[0] <= shape[1] else matrix.T
    turned = wide[torch.randperm(len(wide), generator=generator)]
    mixed = torch.randperm(wide.shape[1], generator=generator)
    assert not torch.equal(in_fp32(turned[:, mixed]), in_fp32(turned)[:, mixed])


def test_sums_are_those_of_integers() -> None:
    """NumPy's products of Python's integers, which never round."""
    unit = 2**25
    x = newton_schulz._round(newton_schulz._normalised(random(12, 30)))

    def whole(numbers: np.ndarray) -> np.ndarray:
        scaled = np.rint(np.asarray(numbers, np.float64) * unit)
        return np.array([[int(each) for each in row] for row in scaled], dtype=object)

    def back(numbers: np.ndarray) -> np.ndarray:
        assert max(abs(each) for each in numbers.flat) < 2**53
        return numbers.astype(np.float64) / unit**2

    wide = x.numpy()
    for _ in range(5):
        q = whole(wide)
        gram = whole(back(q @ q.T)) / unit
        squared = whole(back(whole(gram) @ whole(gram))) / unit
        factor = gram.astype(np.float64) * -4.7750 + squared.astype(np.float64) * 2.0315
        wide = whole(wide * 3.4445 + back(whole(factor) @ q)).astype(np.float64) / unit
    assert np.array_equal(orthogonal(random(12, 30)).numpy(), wide)


def test_an_update_is_that_of_torch_within_its_bfloat16() -> None:
    start, gradient, lr = random(48, 64), random(48, 64, seed=1), 1e-2
    mine = FlatMuon(start.flatten().clone(), 48 * 64, SPEC, (Matrix(0, 48, 64),))
    theirs = torch.nn.Parameter(start.clone())
    optimizer = torch.optim.Muon(
        [theirs], lr=lr, weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw"
    )
    for step in range(3):
        theirs.grad = gradient * (step + 1)
        optimizer.step()
        mine.step(gradient.flatten(), lr, scale=float(step + 1))
    moved = (theirs.detach() - start).norm()
    apart = (mine.values.view(48, 64) - theirs.detach()).norm()
    assert float(apart / moved) < 0.03


def test_bits_do_not_depend_on_threads() -> None:
    start, matrices = random(300 * 200), (Matrix(128, 150, 200), Matrix(30128, 100, 100))
    ends = []
    for count in (1, 2, 3):
        with limited_threads(count):
            mine = FlatMuon(start.clone(), 50_000, SPEC, matrices)
            for step in range(3):
                mine.step(random(300 * 200, seed=step + 1), 1e-2, scale=1 / 3)
        ends.append(mine.values)
    assert all(torch.equal(end, ends[0]) for end in ends)


@pytest.mark.parametrize("cut", [(2,), (1, 1)])
def test_a_mixture_has_a_matrix_for_each_part_of_each_expert(cut: tuple[int, ...]) -> None:
    parts = slices(cut)
    found = [hidden_matrices(MIXTURE, part) for part in parts]
    shapes = [(each.rows, each.columns) for of_stage in found for each in of_stage]
    of_layer = [(16, 16), (8, 16), (8, 16), (16, 16), (4, 16), *[(24, 16)] * 8, *[(16, 24)] * 4]
    assert sorted(shapes) == sorted(of_layer * 2)
    assert largest_matrix(MIXTURE) == 24 * 16
    for part, of_stage in zip(parts, found, strict=True):
        total = size(stage_layout(MIXTURE, part))
        inside = sum(each.rows * each.columns for each in of_stage)
        outside = sum(b - a for a, b in between(of_stage, total))
        assert inside + outside == total


def test_matrices_are_those_of_the_layers_and_nothing_else(spec: ModelSpec) -> None:
    stage = build_stage(spec, whole_slice(spec), seed=0)
    flat = FlatParameters(stage)
    inside = {i for each in hidden_matrices(spec, stage.part) for i in range(each.offset, each.end)}
    for name, places in flat.views(torch.arange(spec.parameter_count)).items():
        whole = name.startswith(spec.layers_prefix) and places.ndim > 1
        elements = set(places.flatten().tolist())
        assert elements <= inside if whole else not elements & inside
        rows = rows_of(spec, name, tuple(places.shape))
        assert sum(rows) == (math.prod(places.shape[:-1]) if whole else 0)
