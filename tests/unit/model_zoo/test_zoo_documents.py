"""Several documents in a sequence: each is computed as if it were alone, in every family."""

from collections.abc import Sequence

import msgspec
import pytest
import torch
from torch import Tensor

from model_zoo.models.documents import documents_of
from model_zoo.specs.architecture import Experts
from model_zoo.specs.model import ModelSpec
from model_zoo.stages import Stage, build_whole, summed_loss
from tests.support.small_models import SPECS

CPU = torch.device("cpu")
CLOSE = 1e-6
"""Products of matrices of other shapes add in another order. Logits are below 1."""
CLOSE_GRADIENT = 1e-5
LENGTHS = [[5, 3, 8], [16], [1, 1, 3, 3, 7, 1], [4, 4, 4, 4]]
WINDOW = ModelSpec("mistral", 4, 32, 4, 2, 48, context=16, window=4)


@pytest.fixture(params=[*SPECS.values(), WINDOW], ids=[*SPECS, "window"])
def shape(request: pytest.FixtureRequest) -> ModelSpec:
    """Every family; the balance loss of experts is of whole sequences, so it is left out."""
    spec: ModelSpec = request.param
    if not isinstance(spec.experts, Experts):
        return spec
    return msgspec.structs.replace(spec, experts=msgspec.structs.replace(spec.experts, balance=0.0))


def begins_of(lengths: Sequence[Sequence[int]]) -> Tensor:
    """Whether a document begins with a token, (B, T)."""
    rows = [[at == 0 for length in row for at in range(length)] for row in lengths]
    return torch.tensor(rows)


def batch(spec: ModelSpec) -> tuple[Tensor, Tensor]:
    """Inputs and targets, (B, T) each."""
    draw = torch.Generator().manual_seed(3)
    size = len(LENGTHS), spec.context
    return torch.randint(spec.vocab, size, generator=draw), torch.randint(
        spec.vocab, size, generator=draw
    )


def documents(rows: Tensor) -> list[Tensor]:
    """The documents of (B, T, ...), each (1, L, ...)."""
    pairs = zip(rows, LENGTHS, strict=True)
    return [piece[None] for row, lengths in pairs for piece in row.split(list(lengths))]


def gradients(model: Stage) -> dict[str, Tensor]:
    """Those that were summed up so far."""
    found = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    return found


def test_documents_are_computed_as_if_alone(shape: ModelSpec) -> None:
    model, (tokens, targets) = build_whole(shape, seed=1), batch(shape)
    packed = model(tokens, begins_of(LENGTHS))
    summed_loss(packed, targets).backward()
    together = gradients(model)
    for ours, inputs, wanted in zip(*map(documents, (packed, tokens, targets)), strict=True):
        alone = model(inputs)
        torch.testing.assert_close(ours, alone, rtol=0, atol=CLOSE)
        summed_loss(alone, wanted).backward()
    apart = gradients(model)
    assert together.keys() == apart.keys()
    for name, gradient in together.items():
        torch.testing.assert_close(gradient, apart[name], rtol=1e-5, atol=CLOSE_GRADIENT)


def test_other_documents_change_no_bit(shape: ModelSpec) -> None:
    model, (tokens, _) = build_whole(shape, seed=1), batch(shape)
    begins = begins_of(LENGTHS)
    others = tokens.clone()
    others[0, :5] = (others[0, :5] + 1) % shape.vocab
    before, after = model(tokens, begins), model(others, begins)
    assert not torch.equal(before[0, :5], after[0, :5])
    assert torch.equal(before[0, 5:], after[0, 5:])
    assert torch.equal(before[1:], after[1:])


def test_a_document_to_a_sequence_changes_no_bit(shape: ModelSpec) -> None:
    model, (tokens, _) = build_whole(shape, seed=1), batch(shape)
    assert torch.equal(model(tokens, begins_of([[16]] * 4)), model(tokens))


def test_a_sequence_always_begins_a_document() -> None:
    assert documents_of(None, CPU) is None
    assert documents_of(torch.zeros(2, 6, dtype=torch.bool), CPU) is None
    begins = torch.zeros(2, 6, dtype=torch.bool)
    begins[0, 4] = True
    found = documents_of(begins, CPU)
    assert found.groups == ((1, 2), (1, 4), (1, 6))


def test_the_calls_are_few_however_documents_are_cut() -> None:
    """So borders that are chosen to cost time cost little."""
    begins = torch.zeros(4, 1024, dtype=torch.bool)
    for row in begins:
        row[torch.tensor([n * (n + 1) // 2 for n in range(45)])] = True
    found = documents_of(begins, CPU)
    assert len(found.groups) <= (2 * begins.numel()) ** 0.5
