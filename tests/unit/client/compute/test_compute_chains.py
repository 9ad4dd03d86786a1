"""Stages in a row, of every kind: plain, with narrow boundaries between them, and of packed data.

Together they compute the gradient of the uncut model, and every recomputation has the same bits and
the tokens that the first pass had.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from client.compute.payload import SEAL_BYTES
from client.lab.reference import train_reference
from model_zoo.data import inputs_and_targets
from model_zoo.specs.data import Answers, DataSpec
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.narrow import Narrow
from model_zoo.specs.tokens import BEGINS, NOT_LEARNED
from model_zoo.stages import build_whole, losses_of, summed_loss
from protocol.pipeline.effects import ApplyTask, ForwardTask, KeepVersionTask, LossTask, PassTask
from tests.support.compute_stages import (
    MODELS,
    OPTIMIZER,
    SEED,
    SEQUENCES,
    TOKENS,
    Chain,
    LocalWorker,
    buffers_of,
    need_of,
    open_request,
    opened,
    relative_error,
    small_run,
    token_tensors,
    tokens_of,
)
from tests.support.texts import corpus_of

CUT = [1, 2, 1]
K = 8
LENGTHS = [[5, 3, 8], [1, 2, 2, 11], [16]]
PACKED = DataSpec("talk", 4 * (40 * TOKENS + 1), "0" * 64, answers=Answers(TOKENS, 100))


def packed_tokens(microbatch: int) -> bytes:
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


@dataclass(frozen=True)
class Kind:
    """A kind of stages; whose boundaries are narrow or whose data are packed need all tokens."""

    model: ModelSpec
    packed: bool = False

    @property
    def tokens(self) -> Callable[[int], bytes]:
        return packed_tokens if self.packed else tokens_of

    @property
    def plain(self) -> bool:
        return not self.packed and self.model.narrow is None

    def chain(self, cut: list[int] = CUT, **options: Any) -> Chain:
        data = {"data": PACKED} if self.packed else {}
        return Chain(
            cut, self.tokens, beside=not self.plain, **data, **{"model": self.model, **options}
        )


NARROW = {
    name: Kind(replace(MODELS[name], narrow=Narrow(K, (1, 3))))
    for name in ("gpt", "llama", "gemma2")
}
TALK = {
    "gpt": Kind(MODELS["gpt"], packed=True),
    "llama": Kind(MODELS["llama"], packed=True),
    "window": Kind(replace(MODELS["llama"], architecture="mistral", window=3), packed=True),
}
KINDS = {
    **{name: Kind(model) for name, model in MODELS.items()},
    **{f"narrow {name}": kind for name, kind in NARROW.items()},
    **{f"packed {name}": kind for name, kind in TALK.items()},
}
every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())


def uncut(kind: Kind, microbatch: int) -> tuple[float, dict[str, torch.Tensor]]:
    """The whole model's loss, and its gradients.

    Of packed data each conversation is run by itself.
    """
    whole = build_whole(kind.model, SEED)
    if not kind.packed:
        inputs, targets = token_tensors(tokens_of(microbatch))
        minimised = loss = summed_loss(whole(inputs), targets)
    else:
        minimised = loss = torch.zeros(())
        samples = np.frombuffer(packed_tokens(microbatch), "<u4").reshape(SEQUENCES, TOKENS + 1)
        rows = zip(*map(torch.from_numpy, inputs_and_targets(samples)), LENGTHS, strict=True)
        for row, wanted, lengths in rows:
            for one, of in zip(row.split(lengths), wanted.split(lengths), strict=True):
                found = losses_of(whole(one[None]), of[None], PACKED.loss_weight)
                loss, minimised = loss + found[0], minimised + found[1]
    minimised.backward()
    gradients = {name: each.grad for name, each in whole.named_parameters()}
    return loss.item(), gradients


@pytest.mark.parametrize(
    ("name", "cut"),
    [
        *((name, cut) for name in ("gpt", "llama", "mixtral") for cut in ([4], [2, 2], CUT)),
        *((name, CUT) for name, kind in KINDS.items() if not kind.plain),
    ],
)
def test_stages_compute_the_gradient_of_the_uncut_model(name: str, cut: list[int]) -> None:
    chain = KINDS[name].chain(cut)
    loss = chain.run(3).loss
    expected_loss, expected = uncut(KINDS[name], 3)
    assert KINDS[name].packed or loss == pytest.approx(expected_loss, rel=1e-6)
    found = chain.named_sums()
    assert found.keys() == expected.keys()
    for parameter, gradient in expected.items():
        assert relative_error(found[parameter], gradient) < 1e-5, parameter


@every_kind
@pytest.mark.parametrize(
    ("codec", "precision"),
    [("s8", "fp32"), ("s4", "fp32"), ("bf16", "fp32"), ("fp32", "fp32"), ("s8", "bf16")],
)
def test_recomputing_gives_the_bits_of_the_kept_graph(
    kind: Kind, codec: str, precision: str
) -> None:
    """Of whole graphs, and of such that keep the blocks' inputs alone."""
    found = []
    for reruns in (False, True):
        for keep_graph in (True, False):
            chain = kind.chain(boundary=codec, precision=precision, reruns_blocks=reruns)
            found.append((chain.run(5, keep_graph=keep_graph), chain.sums))
    (passed, sums), *others = found
    for other, other_sums in others:
        assert other == passed
        assert all(map(torch.equal, other_sums, sums))


@every_kind
def test_fewer_sequences_at_once_add_up_to_the_same(kind: Kind) -> None:
    whole, sliced = kind.chain(), kind.chain(reruns_blocks=True)
    for worker in sliced.workers:
        worker.replica.sequences_at_once = 2
    loss = sliced.run(5, keep_graph=False).loss
    assert loss == pytest.approx(whole.run(5).loss, rel=1e-6)
    for one, other in zip(whole.sums, sliced.sums, strict=True):
        assert relative_error(other, one) < 1e-5


@pytest.mark.parametrize(
    ("name", "cut"),
    [("gpt", [4]), *((name, CUT) for name in ("gpt", "mixtral", "narrow llama", "packed llama"))],
)
def test_a_microbatch_is_taken_out_again(name: str, cut: list[int]) -> None:
    chain = KINDS[name].chain(cut, boundary="s8")
    chain.run(1)
    before = chain.sums
    passed = chain.run(2)
    for stage, worker in enumerate(chain.workers):
        given = (*passed.gradients[stage : stage + 1], *passed.inputs[stage])
        worker.call(PassTask(into="less", step=0, microbatch=2), *given)
        assert relative_error(worker.replica.gradient_sum, before[stage]) < 1e-6
        assert worker.replica.counted == {1}


@every_kind
def test_an_audit_of_each_stage_agrees_and_with_other_tokens_does_not(kind: Kind) -> None:
    chain = kind.chain(boundary="s8")
    for worker in chain.workers:
        worker.call(KeepVersionTask(step=0))
    passed = chain.run(3)
    audit = PassTask(into="audit", step=0, microbatch=3)
    one, two = passed.inputs[1], passed.inputs[2]
    further, back = passed.gradients
    found = [
        chain.workers[0].call(audit, further, *passed.inputs[0], one[0]),
        chain.workers[1].call(audit, back, one[0], kind.tokens(3), two[0], further),
        chain.workers[2].call(audit, *two, back),
    ]
    assert [reply.apart for reply, _ in found] == [(0.0, 0.0)] * 3
    if kind.plain:
        return
    moved = (np.frombuffer(packed_tokens(3), "<u4") & ~np.uint32(BEGINS)).tobytes()
    chain.workers[1].call(KeepVersionTask(step=0))
    other = moved if kind.packed else tokens_of(4)
    reply, _ = chain.workers[1].call(audit, back, one[0], other, two[0], further)
    assert reply.apart[0] > 0.01


@every_kind
def test_held_out_microbatches_are_evaluated(kind: Kind) -> None:
    chain = kind.chain()
    *_, given = chain.forward(PassTask(into="loss", step=0, microbatch=-1), kind.tokens(3))
    evaluated, _ = chain.workers[-1].call(PassTask(into="loss", step=0, microbatch=-1), *given)
    assert not any(worker.replica.gradient_sum.any() for worker in chain.workers)
    assert evaluated.loss_sum == pytest.approx(uncut(kind, 3)[0], rel=1e-6)
    gone = PassTask(into="loss", step=1, microbatch=-1)
    failed = chain.workers[-1].fails(gone, *given)
    assert failed.kind == "stale", "another version would have another loss"


def spoiled(change: Callable[[np.ndarray], None]) -> bytes:
    tokens = np.frombuffer(packed_tokens(3), "<u4").copy()
    change(tokens)
    return tokens.tobytes()


def learned_border(tokens: np.ndarray) -> None:
    tokens[5] &= ~np.uint32(NOT_LEARNED)  # begins the second conversation


def beyond(tokens: np.ndarray) -> None:
    tokens[7] |= 61


@pytest.mark.parametrize(
    ("kind", "tokens"),
    [
        (TALK["gpt"], packed_tokens(3)[:-4]),
        (TALK["gpt"], packed_tokens(3) + bytes(4)),
        (TALK["gpt"], spoiled(learned_border)),
        (TALK["gpt"], spoiled(beyond)),
        (TALK["gpt"], bytes(4 * SEQUENCES * (TOKENS + 1) - 1) + b"\x20"),
        (NARROW["llama"], b""),
        (NARROW["llama"], tokens_of(3)[:-2]),
        (NARROW["llama"], b"\xff\xff" + tokens_of(3)[2:]),
    ],
)
def test_what_are_no_tokens_is_refused_by_every_stage(kind: Kind, tokens: bytes) -> None:
    chain, how = kind.chain(), {"step": 0, "microbatch": 3}
    (_, (one, _), (two, _)) = chain.forward(ForwardTask(**how), kind.tokens(3))
    first, middle, last = chain.workers
    assert first.fails(ForwardTask(**how), tokens).kind == "shape"
    assert middle.fails(ForwardTask(**how), one, tokens).kind == "shape"
    assert last.fails(LossTask(**how), two, tokens).kind == "shape"
    assert not any(worker.replica.gradient_sum.any() for worker in chain.workers)


def test_any_borders_of_the_right_length_are_documents() -> None:
    """So a peer can send none that are malformed: at worst others than the data's, which differ."""
    everywhere = np.frombuffer(packed_tokens(3), "<u4") | np.uint32(NOT_LEARNED | BEGINS)
    chain, how = TALK["llama"].chain(), {"step": 0, "microbatch": 3}
    *_, given = chain.forward(ForwardTask(**how), everywhere.tobytes())
    reply, _ = chain.workers[-1].call(LossTask(**how), *given)
    assert reply.loss_sum == 0.0  # nothing is learned


@pytest.mark.parametrize(("codec", "size"), [("fp32", 4 * K), ("s8", K + 2 * K / 128)])
def test_a_token_takes_as_few_bytes_as_narrow_boundaries_have_numbers(
    codec: str, size: float
) -> None:
    passed = NARROW["llama"].chain(boundary=codec).run(3)
    conditioned = 2 * 128 * (codec == "s8")  # factors, where the codec wants them
    for payload in (passed.inputs[1][0], passed.inputs[2][0], *passed.gradients):
        body = len(payload) - SEAL_BYTES
        assert body - SEQUENCES * TOKENS * size in (0, conditioned)


def test_boundaries_of_another_width_are_refused() -> None:
    one = NARROW["llama"].chain(boundary="s8").run(3).inputs[1][0]
    wide = opened(1, CUT, model="llama", boundary="s8")
    assert wide.fails(ForwardTask(step=0, microbatch=3), one).kind == "codec"


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_narrow_stages_make_the_versions_of_the_reference(name: str, tmp_path: Path) -> None:
    tokens = np.random.default_rng(1).integers(1, 61, size=20_000, dtype=np.uint8)
    (tmp_path / "text").write_bytes(tokens.tobytes())
    corpus, steps, each = corpus_of(str(tmp_path / "text")), 3, 2
    rule = replace(OPTIMIZER, name=name)
    chain, losses = NARROW["llama"].chain(optimizer=rule, microbatches=each), []
    for step in range(steps):
        total = 0.0
        for microbatch in range(step * each, step * each + each):
            samples = corpus.sample(microbatch, SEQUENCES, TOKENS, SEED).astype("<u2").tobytes()
            total += chain.run(microbatch, step=step, tokens=samples).loss
        losses.append(total / (each * SEQUENCES * TOKENS))
        for worker in chain.workers:
            worker.call(ApplyTask(step=step))
    model = NARROW["llama"].model
    run = small_run(CUT, model=model, optimizer=rule, steps=steps, microbatches=each)
    expected = train_reference(run, corpus)
    assert losses == pytest.approx(expected.losses, rel=1e-5)
    for worker in chain.workers:
        for parameter, tensor in worker.replica.flat.views(worker.replica.flat.values).items():
            assert relative_error(tensor, expected.state[parameter]) < 1e-3, parameter


@pytest.mark.parametrize("stage", range(3))
def test_the_memory_of_narrow_stages_is_predicted(stage: int) -> None:
    request = open_request(stage, CUT, model=NARROW["llama"].model)
    worker = LocalWorker()
    worker.call(request)
    need, wide = need_of(request), need_of(open_request(stage, CUT, model="llama"))
    assert need.state_bytes == sum(each.nbytes for each in buffers_of(worker.replica))
    ends = 4 * SEQUENCES * TOKENS * (K * (stage > 0) + 32 * (stage < 2))
    assert need.graph_bytes - wide.graph_bytes == ends
