"""The loss of a head in pieces: what it equals, and what it needs."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from model_zoo import head_loss
from model_zoo.data import NO_TARGET
from model_zoo.models.lora import freeze
from model_zoo.specs.architecture import Lora
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.slices import whole_slice
from model_zoo.stages import Stage, build_stage, losses_of

SPEC = ModelSpec(
    architecture="llama",
    layers=1,
    width=16,
    heads=2,
    kv_heads=2,
    ffn_width=32,
    vocab=53,
    context=12,
)
ROWS, TOKENS = 3, 12
RELATIVE = 4e-6
"""Sums over tokens in another order."""


@pytest.fixture
def pieces(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Seven tokens at a time; the sizes of the pieces that were run."""
    ran: list[int] = []

    def noted(logits: Tensor, targets: Tensor, weight: float) -> tuple[Tensor, Tensor]:
        ran.append(targets.numel())
        return losses_of(logits, targets, weight)

    monkeypatch.setattr("model_zoo.stages.LOGITS_AT_ONCE", 7 * SPEC.vocab)
    monkeypatch.setattr(head_loss, "losses_of", noted)
    return iter([ran])


def _run(stage: Stage, x: Tensor, targets: Tensor, weight: float) -> tuple[Tensor, ...]:
    """Loss, what is run back, and all gradients: of the input first."""
    leaf = x.clone().requires_grad_()
    loss, whole = head_loss.losses_of_hidden(stage, leaf * 2, targets, weight)
    trained = [each for each in stage.projecting if each.requires_grad]
    return loss, whole, *torch.autograd.grad(whole, [leaf, *trained])


def _given() -> tuple[Stage, Tensor, Tensor]:
    torch.manual_seed(3)
    stage = build_stage(SPEC, whole_slice(SPEC), 7)
    x = torch.randn(ROWS, TOKENS, SPEC.width)
    targets = torch.randint(SPEC.vocab, (ROWS, TOKENS))
    targets[1, 4:] = NO_TARGET
    return stage, x, targets


@pytest.mark.parametrize("weight", [1.0, 1.7])
def test_pieces_equal_the_whole(weight: float, pieces: Iterator[list[int]]) -> None:
    stage, x, targets = _given()
    in_pieces = _run(stage, x, targets, weight)
    assert next(pieces) == [7, 7, 7, 7, 7, 1]
    leaf = x.clone().requires_grad_()
    logits = stage.project(leaf * 2)
    loss, whole = losses_of(logits, targets, weight)
    expected = torch.autograd.grad(whole, [leaf, *stage.projecting])
    for got, wanted in zip(in_pieces, (loss, whole, *expected), strict=True):
        assert ((got - wanted).detach().norm() / wanted.detach().norm()).item() < RELATIVE


def test_the_gradient_is_that_of_what_it_is_multiplied_with(pieces: Iterator[list[int]]) -> None:
    stage, x, targets = _given()
    gradients = []
    for factor in (1.0, -3.0):
        leaf = x.clone().requires_grad_()
        _, whole = head_loss.losses_of_hidden(stage, leaf, targets, 1.0)
        gradients.append(torch.autograd.grad(whole * factor, leaf)[0])
    torch.testing.assert_close(gradients[1], gradients[0] * -3.0)
    assert len(next(pieces)) == 12


def test_a_frozen_head_gets_no_gradient(pieces: Iterator[list[int]]) -> None:
    stage, x, targets = _given()
    lora = Lora(rank=2, alpha=4.0, targets=("self_attn.q_proj",), base="bf16")
    freeze(stage, SPEC, lora)
    results = _run(stage, x, targets, 1.0)
    assert len(results) == 3  # loss, what is run back, gradient of the input
    assert len(next(pieces)) == 6


def test_without_gradients_nothing_is_run_back(pieces: Iterator[list[int]]) -> None:
    stage, x, targets = _given()
    with torch.no_grad():
        loss, whole = head_loss.losses_of_hidden(stage, x, targets, 1.0)
        whole_logits, _ = losses_of(stage.project(x), targets, 1.0)
    assert not whole.requires_grad
    torch.testing.assert_close(loss, whole_logits)
    assert len(next(pieces)) == 6


def test_small_logits_are_made_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As they always were, bit for bit."""
    stage, x, targets = _given()
    assert stage.logits_at_once > targets.numel() * SPEC.vocab
    got = _run(stage, x, targets, 1.0)
    leaf = x.clone().requires_grad_()
    loss, whole = losses_of(stage.project(leaf * 2), targets, 1.0)
    expected = torch.autograd.grad(whole, [leaf, *stage.projecting])
    assert all(torch.equal(a, b) for a, b in zip(got, (loss, whole, *expected), strict=True))
