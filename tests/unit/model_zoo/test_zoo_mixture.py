"""A mixture of experts: tokens find theirs, and the loss of balance enters the gradient once."""

from typing import Literal

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor
from torch.nn import functional as F

from model_zoo.models.mixture import Mixture, imbalance
from model_zoo.specs.architecture import Experts
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.slices import whole_slice
from model_zoo.stages import Stage, build_whole, load_stage, summed_loss

COUNT, ACTIVE, BALANCE, LAYERS = 5, 2, 0.5, 3
SPEC = ModelSpec(
    "mixtral",
    LAYERS,
    32,
    4,
    2,
    24,
    context=16,
    experts=Experts(COUNT, ACTIVE, balance=BALANCE),
)
UNBALANCED = replace(SPEC, experts=Experts(COUNT, ACTIVE, balance=0.0))


def mixture(shares: Literal["chosen", "all"] = "chosen", balance: float = BALANCE) -> Mixture:
    """With weights large enough to tell experts apart."""
    ffn = Mixture(SPEC, Experts(COUNT, ACTIVE, shares, balance))
    generator = torch.Generator().manual_seed(3)
    for parameter in ffn.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator) * 0.3
    return ffn


def hidden(sequences: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(sequences, 7, SPEC.width, generator=generator)


@pytest.mark.parametrize("shares", ["chosen", "all"])
@torch.no_grad()
def test_a_token_becomes_the_weighted_sum_of_its_experts(shares: Literal["chosen", "all"]) -> None:
    ffn, x = mixture(shares), hidden()
    gates, ups = ffn.experts.gate_up_proj.chunk(2, dim=1)
    downs = ffn.experts.down_proj
    for token, actual in zip(x.flatten(0, 1), ffn(x).flatten(0, 1), strict=True):
        share = ffn.gate(token).softmax(0)
        best = share.argsort(descending=True)[:ACTIVE].tolist()
        total = sum(share[i] for i in best) if shares == "chosen" else 1.0
        outputs = [downs[i] @ (F.silu(gates[i] @ token) * (ups[i] @ token)) for i in best]
        weighted = [share[i] / total * out for i, out in zip(best, outputs, strict=True)]
        torch.testing.assert_close(actual, torch.stack(weighted).sum(0), rtol=1e-5, atol=1e-5)


def test_the_loss_of_balance_is_that_of_transformers() -> None:
    modeling = pytest.importorskip(
        "transformers.models.mixtral.modeling_mixtral", reason="needs transformers"
    )
    logits = mixture().gate(hidden(4))  # (B, T, E)
    probabilities = logits.softmax(-1)
    ours = imbalance(probabilities, probabilities.topk(ACTIVE).indices)
    for sequence, actual in zip(logits, ours, strict=True):
        expected = modeling.load_balancing_loss_func((sequence,), COUNT, ACTIVE)
        torch.testing.assert_close(actual, expected)


def loss_of(model: Stage, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """The summed cross-entropy, and what the routers' choices say of balance, worked out anew: the
    mean over the layers for each sequence, times its tokens."""
    terms = list[Tensor]()

    def note(router: torch.nn.Module, given: tuple[Tensor, ...], logits: Tensor) -> None:
        for sequence in logits.softmax(-1):  # (T, E)
            busy = torch.zeros(COUNT)
            for expert in sequence.topk(ACTIVE).indices.flatten().tolist():
                busy[expert] += 1 / len(sequence)
            terms.append(COUNT * (busy * sequence.mean(0)).sum() * len(sequence) / LAYERS)

    gates = [block.get_submodule("mlp.gate") for block in model.blocks.values()]
    hooks = [gate.register_forward_hook(note) for gate in gates]
    loss = summed_loss(model(tokens[:, :-1]), tokens[:, 1:])
    for hook in hooks:
        hook.remove()
    return loss, torch.stack(terms).sum()


def test_it_enters_the_gradient_once_and_the_shown_loss_not_at_all(tokens: Tensor) -> None:
    model = build_whole(SPEC, seed=1)
    plain = load_stage(UNBALANCED, whole_slice(SPEC), model.state_dict())
    loss, _ = loss_of(model, tokens)
    loss.backward()  # type: ignore[no-untyped-call]
    expected, balance = loss_of(plain, tokens)
    assert torch.equal(loss, expected)
    (expected + BALANCE * balance).backward()  # type: ignore[no-untyped-call]
    theirs = {name: p.grad for name, p in plain.named_parameters()}
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, theirs[name], rtol=1e-4, atol=1e-6)
    # and it matters
    plain.zero_grad()
    loss_of(plain, tokens)[0].backward()  # type: ignore[no-untyped-call]
    routed = "model.layers.1.mlp.gate.weight"
    ours, without = (dict(each.named_parameters())[routed].grad for each in (model, plain))
    assert (ours - without).norm() > 0.1 * without.norm()


def test_sequences_are_independent() -> None:
    """So a microbatch that does not fit in memory is run in slices, with the same gradient."""

    def gradient(x: list[Tensor]) -> Tensor:
        ffn = mixture()
        for part in x:
            ffn(part).sum().backward()
        return ffn.gate.weight.grad

    x = hidden(4)
    torch.testing.assert_close(gradient([x]), gradient([x[:1], x[1:]]), rtol=1e-4, atol=1e-4)


def test_two_backward_passes_give_the_same_bits() -> None:
    def gradients() -> list[Tensor | None]:
        ffn, x = mixture(), hidden().requires_grad_()
        ffn(x).square().sum().backward()
        return [x.grad, *(parameter.grad for parameter in ffn.parameters())]

    for one, other in zip(gradients(), gradients(), strict=True):
        assert torch.equal(one, other)
