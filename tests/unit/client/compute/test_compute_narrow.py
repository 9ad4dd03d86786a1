"""Narrow boundaries in stages: gradients are the uncut model's, and every recomputation has the
tokens that the first pass had."""

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from client.compute.memory import Holding
from client.compute.payload import HEADER
from client.compute.requests import Load, Save
from client.lab.reference import TrainingPlan, train_reference
from model_zoo.datasets.corpus import Corpus
from model_zoo.specs.narrow import Narrow
from model_zoo.specs.optimizer import OptimizerSpec
from model_zoo.specs.state import StateSpec
from model_zoo.stages import summed_loss
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
    OPTIMIZER,
    SEED,
    SEQUENCES,
    TOKENS,
    LocalWorker,
    open_request,
    relative_error,
    token_tensors,
    tokens_of,
)

CUT = [1, 2, 1]
K = 8
SHAPES = {
    name: replace(MODELS[name], narrow=Narrow(K, (1, 3))) for name in ("gpt", "llama", "gemma2")
}


def opened_stages(model: str = "llama", **options: object) -> list[LocalWorker]:
    workers = []
    for stage in range(len(CUT)):
        worker = LocalWorker()
        worker.call(replace(open_request(stage, CUT, **options), model=SHAPES[model]))
        workers.append(worker)
    return workers


def run(workers, microbatch, *, step=0, tokens=None, keep_graph=True):
    """One microbatch forward and back; the loss, and what went through each stage."""
    first, middle, last = workers
    tokens = tokens_of(microbatch) if tokens is None else tokens
    how = {"step": step, "microbatch": microbatch}
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


@pytest.mark.parametrize("model", SHAPES)
def test_stages_compute_the_gradient_of_the_uncut_model(model):
    workers = opened_stages(model)
    loss, _, _ = run(workers, 3)
    inputs, targets = token_tensors(tokens_of(3))
    whole = build_whole(SHAPES[model], SEED)
    expected = summed_loss(whole(inputs), targets)
    expected.backward()
    assert loss == pytest.approx(expected.item(), rel=1e-6)
    for worker in workers:
        for of in worker.replica.flat.layout:
            found = worker.replica.gradient_sum[of.offset :][: of.size].view(of.shape)
            gradient = whole.get_parameter(of.name).grad
            assert relative_error(found, gradient) < 1e-5, of.name


@pytest.mark.parametrize(("codec", "size"), [("fp32", 4 * K), ("s8", K + 2 * K / 128)])
def test_a_token_is_as_few_bytes_as_it_has_numbers(codec, size):
    _, (_, one, two), (further, back) = run(opened_stages(boundary=codec), 3)
    conditioned = 2 * 128 * (codec == "s8")  # factors, where the codec wants them
    for payload in (one, two, further, back):
        body = len(payload) - HEADER.size
        assert body - SEQUENCES * TOKENS * size in (0, conditioned)


@pytest.mark.parametrize("codec", ["s8", "fp32"])
def test_recomputing_has_the_bits_of_the_kept_graph(codec):
    kept, recomputed = (opened_stages(boundary=codec) for _ in range(2))
    assert run(kept, 5) == run(recomputed, 5, keep_graph=False)
    for one, other in zip(sums(kept), sums(recomputed), strict=True):
        assert one.equal(other)


def test_fewer_sequences_at_once_have_their_own_tokens():
    whole, sliced = opened_stages(), opened_stages(reruns_blocks=True)
    for worker in sliced:
        worker.replica.sequences_at_once = 2
    assert run(sliced, 5)[0] == pytest.approx(run(whole, 5)[0], rel=1e-6)
    for one, other in zip(sums(whole), sums(sliced), strict=True):
        assert relative_error(other, one) < 1e-5


def test_subtracting_takes_a_microbatch_out_again():
    workers = opened_stages()
    run(workers, 1)
    before = sums(workers)
    _, (tokens, one, two), (further, back) = run(workers, 2)
    first, middle, last = workers
    first.call(PassTask(into="less", step=0, microbatch=2), further, tokens)
    middle.call(PassTask(into="less", step=0, microbatch=2), back, one, tokens)
    last.call(PassTask(into="less", step=0, microbatch=2), two, tokens)
    for worker, was in zip(workers, before, strict=True):
        assert relative_error(worker.replica.gradient_sum, was) < 1e-6


def test_an_audit_agrees_with_the_tokens_and_with_no_others():
    workers = opened_stages(boundary="s8")
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
    other, _ = middle.call(PassTask(into="audit", **how), back, one, tokens_of(4), two, further)
    assert other.apart[0] > 0.01


def test_held_out_microbatches_are_evaluated():
    first, middle, last = opened_stages()
    tokens, how = tokens_of(3), {"step": 0, "microbatch": -1}
    _, (one,) = first.call(PassTask(into="loss", **how), tokens)
    _, (two,) = middle.call(PassTask(into="loss", **how), one, tokens)
    evaluated, _ = last.call(PassTask(into="loss", **how), two, tokens)
    inputs, targets = token_tensors(tokens)
    expected = summed_loss(build_whole(SHAPES["llama"], SEED)(inputs), targets).item()
    assert evaluated.loss_sum == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("tokens", [b"", tokens_of(3)[:-2], b"\xff\xff" + tokens_of(3)[2:]])
def test_a_stage_in_between_refuses_what_are_no_tokens(tokens):
    first, middle, _ = opened_stages()
    _, (one,) = first.call(ForwardTask(step=0, microbatch=3), tokens_of(3))
    assert middle.fails(ForwardTask(step=0, microbatch=3), one, tokens).kind == "shape"


def test_a_boundary_of_another_width_is_refused():
    _, (_, one, _), _ = run(opened_stages(boundary="s8"), 3)
    wide = LocalWorker()
    wide.call(open_request(1, CUT, model="llama", boundary="s8"))
    assert wide.fails(ForwardTask(step=0, microbatch=3), one).kind == "codec"


def test_a_stage_of_another_cut_is_refused():
    request = replace(open_request(0, [2, 1, 1]), model=SHAPES["llama"])
    failed = LocalWorker().fails(request)
    assert failed.kind == "shape"
    assert "boundaries" in failed.message


@pytest.fixture
def corpus() -> Corpus:
    tokens = np.random.default_rng(1).integers(61, size=20_000, dtype=np.uint8)
    return Corpus.from_tokens("corpus", tokens)


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_executors_make_the_versions_of_the_reference(corpus: Corpus, name: str) -> None:
    rule = OptimizerSpec(**{**{f: getattr(OPTIMIZER, f) for f in ("lr", "min_lr")}, "name": name})
    workers, steps, each = opened_stages(optimizer=rule, microbatches=2), 3, 2
    losses = []
    for step in range(steps):
        total = 0.0
        for microbatch in range(step * each, step * each + each):
            samples = corpus.sample(microbatch, SEQUENCES, TOKENS, SEED).astype("<u2").tobytes()
            total += run(workers, microbatch, step=step, tokens=samples)[0]
        losses.append(total / (each * SEQUENCES * TOKENS))
        for worker in workers:
            worker.call(ApplyTask(step=step))
    plan = TrainingPlan(SHAPES["llama"], tuple(CUT), rule, SEED, steps, each, SEQUENCES)
    expected = train_reference(plan, corpus)
    assert losses == pytest.approx(expected.losses, rel=1e-5)
    for worker in workers:
        for parameter, tensor in worker.replica.flat.state().items():
            assert relative_error(tensor, expected.state[parameter]) < 1e-3, parameter


def test_a_version_is_saved_and_loaded(tmp_path: Path) -> None:
    workers = opened_stages()
    run(workers, 0)
    for stage, worker in enumerate(workers):
        made, _ = worker.call(ApplyTask(step=0))
        path = str(tmp_path / f"{stage}.safetensors")
        worker.call(Save(version=1, path=path))
        again = LocalWorker()
        again.call(replace(open_request(stage, CUT), model=SHAPES["llama"]))
        loaded, _ = again.call(Load(path=path, version=1, expected_hash=made.hash))
        assert loaded.hash == made.hash
        wide = LocalWorker()
        wide.call(open_request(stage, CUT, model="llama"))
        assert wide.fails(Load(path=path, version=1)).kind == "checkpoint"


@pytest.mark.parametrize("stage", range(3))
def test_memory_is_predicted(stage: int) -> None:
    worker = opened_stages()[stage]
    need = needed(stage)
    assert need.state_bytes == worker.replica.held_bytes
    wide = Holding(model=MODELS["llama"], **sizes(stage)).need
    ends = 4 * SEQUENCES * TOKENS * (K * (stage > 0) + 32 * (stage < 2))
    assert need.graph_bytes - wide.graph_bytes == ends


def sizes(stage: int) -> dict[str, object]:
    return {
        "layers_per_stage": CUT,
        "stage": stage,
        "sequences": SEQUENCES,
        "tokens": TOKENS,
        "graphs_kept": 2,
        "averaging_codec": "fp32",
        "state": StateSpec(),
    }


def needed(stage: int):
    return Holding(model=SHAPES["llama"], **sizes(stage)).need
