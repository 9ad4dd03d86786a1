"""Packed data in stages: every one knows the borders, and every recomputation has the same ones."""

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from model_zoo.data import inputs_and_targets
from model_zoo.specs.data import Answers, DataSpec
from model_zoo.specs.tokens import BEGINS, NOT_LEARNED
from model_zoo.stages import losses_of
from model_zoo.whole import build_whole
from protocol.pipeline.effects import (
    ApplyTask,
    BackwardTask,
    ForwardTask,
    KeepVersionTask,
    LossTask,
    PassTask,
)
from tests.support.compute_stages import (
    MODELS,
    SEED,
    SEQUENCES,
    TOKENS,
    LocalWorker,
    open_request,
    relative_error,
)

CUT = [1, 2, 1]
MIDDLE = 1
LENGTHS = [[5, 3, 8], [1, 2, 2, 11], [16]]
SHAPES = {
    "gpt": MODELS["gpt"],
    "llama": MODELS["llama"],
    "window": replace(MODELS["llama"], architecture="mistral", window=3),
}
APART = DataSpec("talk", 4 * (40 * TOKENS + 1), "0" * 64, answers=Answers(TOKENS, 100))
PACKED = replace(APART, answers=Answers(TOKENS, 100, True))


def packed_tokens(microbatch):
    """Tokens (B, T+1) of conversations, of which the second halves are learned."""
    draw = np.random.default_rng(microbatch)
    tokens = draw.integers(61, size=(SEQUENCES, TOKENS + 1), dtype=np.uint32)
    for row, lengths in zip(tokens, LENGTHS, strict=True):
        at = 0
        for length in lengths:
            row[at : at + max(1, length // 2)] |= NOT_LEARNED
            row[at] |= BEGINS
            at += length
        row[at] |= NOT_LEARNED | BEGINS  # the next window's first
    return tokens.tobytes()


def opened_stages(model, **options):
    workers = []
    for stage in range(len(CUT)):
        worker = LocalWorker()
        request = open_request(stage, CUT, token_data=PACKED, **options)
        worker.call(replace(request, model=SHAPES[model]))
        workers.append(worker)
    return workers


def run(workers, microbatch, *, keep_graph=True):
    """One microbatch forward and back; the loss, and what went through each stage.

    Of each stage: its input, and the gradients of its output and of its input.
    """
    first, middle, last = workers
    tokens = packed_tokens(microbatch)
    how = {"step": 0, "microbatch": microbatch}
    _, (one,) = first.call(ForwardTask(**how), tokens)
    _, (two,) = middle.call(ForwardTask(**how), one, tokens)
    reply, (back,) = last.call(LossTask(**how), two, tokens)
    if not keep_graph:
        first.replica.drop_graphs()
        middle.replica.drop_graphs()
    _, (further,) = middle.call(BackwardTask(**how), back, one, tokens)
    first.call(BackwardTask(**how), further, tokens)
    return reply.loss_sum, [tokens, one, two], [further, back]


def sums(workers):
    return [worker.replica.gradient_sum.clone() for worker in workers]


def alone(model, microbatch):
    """The gradient of the conversations, each run by itself through the whole model, by name."""
    samples = np.frombuffer(packed_tokens(microbatch), "<u4").reshape(SEQUENCES, TOKENS + 1)
    inputs, targets = map(torch.from_numpy, inputs_and_targets(samples))
    whole = build_whole(SHAPES[model], SEED)
    for row, wanted, lengths in zip(inputs, targets, LENGTHS, strict=True):
        for one, of in zip(row.split(lengths), wanted.split(lengths), strict=True):
            _, loss = losses_of(whole(one[None]), of[None], z_weight=0, weight=PACKED.loss_weight)
            loss.backward()
    return {name: each.grad for name, each in whole.named_parameters()}


@pytest.mark.parametrize("model", SHAPES)
def test_three_stages_compute_the_gradient_of_conversations_alone(model):
    workers = opened_stages(model)
    run(workers, 3)
    expected = alone(model, 3)
    for worker in workers:
        for of in worker.replica.flat.layout:
            found = worker.replica.gradient_sum[of.offset :][: of.size].view(of.shape)
            assert relative_error(found, expected[of.name]) < 1e-5, of.name


@pytest.mark.parametrize("model", SHAPES)
@pytest.mark.parametrize("codec", ["s8", "fp32"])
def test_recomputing_has_the_bits_of_the_kept_graph(model, codec):
    kept, recomputed = (opened_stages(model, boundary=codec) for _ in range(2))
    assert run(kept, 5) == run(recomputed, 5, keep_graph=False)
    assert all(map(torch.equal, sums(kept), sums(recomputed)))


@pytest.mark.parametrize("model", SHAPES)
def test_fewer_sequences_at_once_have_the_same_borders(model):
    whole, sliced = (opened_stages(model) for _ in range(2))
    for worker in sliced:
        worker.replica.sequences_at_once = 2
    loss, _, _ = run(whole, 5)
    assert run(sliced, 5)[0] == pytest.approx(loss, rel=1e-6)
    for one, other in zip(sums(whole), sums(sliced), strict=True):
        assert relative_error(other, one) < 1e-5


def test_subtracting_takes_a_microbatch_out_again():
    workers = opened_stages("llama")
    run(workers, 1)
    before = sums(workers)
    _, (tokens, one, two), (further, back) = run(workers, 2)
    first, middle, last = workers
    first.call(PassTask(into="less", step=0, microbatch=2), further, tokens)
    middle.call(PassTask(into="less", step=0, microbatch=2), back, one, tokens)
    last.call(PassTask(into="less", step=0, microbatch=2), two, tokens)
    for worker, was in zip(workers, before, strict=True):
        assert relative_error(worker.replica.gradient_sum, was) < 1e-6


@pytest.mark.parametrize("model", SHAPES)
def test_an_audit_of_each_stage_agrees(model):
    """And one with other borders than the member's does not."""
    workers = opened_stages(model, boundary="s8")
    for worker in workers:
        worker.call(KeepVersionTask(step=0))
    _, (tokens, one, two), (further, back) = run(workers, 3)
    first, middle, last = workers
    how = {"step": 0, "microbatch": 3}
    answers = [
        first.call(PassTask(into="audit", **how), further, tokens, one),
        middle.call(PassTask(into="audit", **how), back, one, tokens, two, further),
        last.call(PassTask(into="audit", **how), two, tokens, back),
    ]
    assert [of.apart for of, _ in answers] == [(0.0, 0.0)] * 3
    middle.call(KeepVersionTask(step=0))
    moved = (np.frombuffer(tokens, "<u4") & ~np.uint32(BEGINS)).tobytes()
    other, _ = middle.call(PassTask(into="audit", **how), back, one, moved, two, further)
    assert other.apart[0] > 0.01


def test_held_out_conversations_are_evaluated_within_their_borders():
    workers = opened_stages("gpt")
    first, middle, last = workers
    tokens = packed_tokens(3)
    how = {"step": 0, "microbatch": -1}
    _, (one,) = first.call(PassTask(into="loss", **how), tokens)
    _, (two,) = middle.call(PassTask(into="loss", **how), one, tokens)
    evaluated, _ = last.call(PassTask(into="loss", **how), two, tokens)
    same = {"step": 0, "microbatch": 0}
    assert middle.call(ForwardTask(**same), one, tokens)[1] == [two]
    assert evaluated.loss_sum > 0
    gone = PassTask(into="loss", step=1, microbatch=-1)
    assert last.fails(gone, two, tokens).kind == "stale", "another version would have another loss"


def spoiled(change):
    tokens = np.frombuffer(packed_tokens(3), "<u4").copy()
    change(tokens)
    return tokens.tobytes()


def learned_border(tokens):
    tokens[5] &= ~np.uint32(NOT_LEARNED)  # begins the second conversation


def beyond(tokens):
    tokens[7] |= 61


@pytest.mark.parametrize(
    "tokens",
    [
        b"",
        packed_tokens(3)[:-4],
        packed_tokens(3) + bytes(4),
        spoiled(learned_border),
        spoiled(beyond),
        bytes(4 * SEQUENCES * (TOKENS + 1) - 1) + b"\x20",
    ],
    ids=["none", "short", "long", "learned", "vocabulary", "another bit"],
)
def test_hostile_borders_are_refused_and_change_nothing(tokens):
    first, middle, last = opened_stages("gpt")
    how = {"step": 0, "microbatch": 3}
    good = packed_tokens(3)
    _, (one,) = first.call(ForwardTask(**how), good)
    _, (two,) = middle.call(ForwardTask(**how), one, good)
    assert first.fails(ForwardTask(**how), tokens).kind == "shape"
    assert middle.fails(ForwardTask(**how), one, tokens).kind == "shape"
    assert last.fails(LossTask(**how), two, tokens).kind == "shape"
    assert not any(worker.replica.gradient_sum.any() for worker in (first, middle, last))


def test_any_borders_of_the_right_length_are_documents():
    """So a peer can send none that are malformed: at worst others than the data's, which differ."""
    workers = opened_stages("llama")
    everywhere = np.frombuffer(packed_tokens(3), "<u4") | np.uint32(NOT_LEARNED | BEGINS)
    how = {"step": 0, "microbatch": 3}
    _, (one,) = workers[0].call(ForwardTask(**how), everywhere.tobytes())
    _, (two,) = workers[1].call(ForwardTask(**how), one, everywhere.tobytes())
    reply, _ = workers[2].call(LossTask(**how), two, everywhere.tobytes())
    assert reply.loss_sum == 0.0  # nothing is learned


def test_borders_are_refused_where_data_is_not_packed():
    worker = LocalWorker()
    worker.call(open_request(0, CUT, token_data=APART))
    refused = worker.fails(ForwardTask(step=0, microbatch=3), packed_tokens(3))
    assert "outside the vocabulary" in refused.message


def test_a_step_of_packed_data_is_applied():
    workers = opened_stages("gpt")
    run(workers, 1)
    for worker in workers:
        assert worker.call(ApplyTask(step=0))[0].grad_norm > 0
