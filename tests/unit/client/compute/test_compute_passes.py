"""Forward and backward of stages against the uncut model, and the ledger of what counts."""

import math
import sys

import numpy as np
import pytest
import torch

from client.compute import device, replica
from client.compute.passes import LARGEST_GRADIENT
from client.compute.payload import seal
from client.compute.replica import squared_norm, step_scale
from client.compute.requests import Load, Probe, Save
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.optimizer import learning_rate, stage_clip
from model_zoo.stages import build_whole, summed_loss
from protocol.limits import MAX_MICROBATCHES_PER_STEP
from protocol.pipeline.effects import (
    ApplyTask,
    BackwardTask,
    ContributeTask,
    ForwardTask,
    LossTask,
    PassTask,
)
from tests.support.codecs import encode
from tests.support.compute_rounds import reduce_task
from tests.support.compute_stages import (
    MODELS,
    OPTIMIZER,
    SEED,
    SEQUENCES,
    TOKENS,
    Chain,
    LocalWorker,
    buffers_of,
    open_request,
    opened,
    relative_error,
    token_tensors,
    tokens_of,
)

SHAPE = (SEQUENCES, TOKENS, 32)


@pytest.mark.parametrize(("codec", "most"), [("s8", 0.03), ("s4", 0.4)])
def test_narrow_boundaries_barely_change_the_gradient(codec, most) -> None:
    narrow, exact = Chain([2, 2], boundary=codec), Chain([2, 2])
    narrow.run(3)
    exact.run(3)
    expected = exact.named_sums()
    for name, gradient in narrow.named_sums().items():
        assert relative_error(gradient, expected[name]) < most, name


def test_each_microbatch_has_its_own_chance() -> None:
    """The same tokens and the same input, at either end of a stage: another rounding."""
    first, middle, last = (opened(stage, [1, 2, 1], boundary="s4") for stage in range(3))
    tokens, ends, inside, given = tokens_of(1), set(), set(), b""
    for microbatch in (1, 2):
        (boundary,) = first.call(ForwardTask(step=0, microbatch=microbatch), tokens)[1]
        (onward,) = middle.call(ForwardTask(step=0, microbatch=microbatch), boundary)[1]
        run = LossTask(step=0, microbatch=microbatch)
        ends.add(bytes(last.call(run, onward, tokens)[1][0]))
        given = given or min(ends)
        back = BackwardTask(step=0, microbatch=microbatch)
        inside.add(bytes(middle.call(back, given)[1][0]))
    assert len(ends) == len(inside) == 2


def test_a_microbatch_counts_once() -> None:
    chain = Chain([2, 2])
    passed, (first, last) = chain.run(1), chain.workers
    assert last.fails(LossTask(step=0, microbatch=1), *passed.inputs[1]).kind == "ledger"
    given = passed.gradients[0], tokens_of(1)
    assert first.fails(BackwardTask(step=0, microbatch=1), *given).kind == "ledger"
    assert first.fails(PassTask(into="less", step=0, microbatch=9), *given).kind == "ledger"


def test_graphs_are_kept_within_the_budget() -> None:
    worker = opened(0, [2, 2], graphs_kept=2)
    told = [
        worker.call(ForwardTask(step=0, microbatch=m), tokens_of(m))[0].graph_kept
        for m in (1, 2, 3, 2)  # the last one in its place
    ]
    assert told == [True, True, False, True]
    assert worker.replica.graphs.keys() == {1, 2}


def test_backward_without_graph_asks_for_the_input() -> None:
    chain = Chain([2, 2])
    (gradient,), request = chain.run(1).gradients, BackwardTask(step=0, microbatch=2)
    assert chain.workers[0].fails(request, gradient).kind == "graph"
    chain.workers[0].call(request, gradient, tokens_of(1))


def test_poison_is_caught_and_leaves_the_sum_exact() -> None:
    chain = Chain([2, 2])
    passed, (first, last), (before, _) = chain.run(1), chain.workers, chain.sums
    first.replica.flat.values[:100] = float("nan")
    assert first.fails(ForwardTask(step=0, microbatch=2), tokens_of(1)).kind == "poisoned"
    backward = BackwardTask(step=0, microbatch=2)
    assert first.fails(backward, *passed.gradients, tokens_of(1)).kind == "poisoned"
    assert torch.equal(first.replica.gradient_sum, before)
    assert first.replica.counted == {1}
    last.replica.flat.values[-32:] = float("nan")
    assert last.fails(LossTask(step=0, microbatch=2), *passed.inputs[1]).kind == "poisoned"


@pytest.mark.parametrize("codec", ["s8", "bf16", "fp32"])
@pytest.mark.parametrize("recomputed", [False, True])
def test_an_absurd_gradient_is_not_counted_and_spoils_no_round(codec, recomputed) -> None:
    """The codec lets large numbers through, and while nothing is usual so do we, but their sum
    could not be sent on."""
    chain = Chain([2, 2], boundary=codec, averaging=codec)
    chain.run(1)
    first, (before, _) = chain.workers[0], chain.sums
    absurd = torch.randn(SHAPE).sign() * 2.0**39
    payload = encode(absurd, codec, direction="backward")
    seal(payload)
    if not recomputed:
        first.call(ForwardTask(step=0, microbatch=2), tokens_of(1))
    request = BackwardTask(step=0, microbatch=2)
    assert first.fails(request, payload, tokens_of(1)).kind == "poisoned"
    assert torch.equal(first.replica.gradient_sum, before)
    assert first.replica.counted == {1}
    first.call(ContributeTask(step=0, attempt=0, bounds=[0, first.replica.size]))


def test_gradients_of_all_microbatches_together_can_be_averaged() -> None:
    worker = opened(0, [4], averaging="s8")
    worker.replica.gradient_sum.fill_(MAX_MICROBATCHES_PER_STEP * LARGEST_GRADIENT)
    bounds = [0, worker.replica.size]
    worker.call(ContributeTask(step=0, attempt=0, bounds=bounds))
    worker.call(reduce_task(step=0, attempt=0, segment=0, microbatches=[1], own=0))


def test_wrong_input_is_refused_and_says_which() -> None:
    first, middle, last = (opened(stage, [1, 2, 1], boundary="s8") for stage in range(3))
    tokens = tokens_of(1)
    boundary = first.call(ForwardTask(step=0, microbatch=1), tokens)[1][0]
    damaged = boundary[:-1] + bytes([boundary[-1] ^ 1])
    unsealed = bytes(encode(torch.zeros(SHAPE), "s8", direction="forward"))
    forward = ForwardTask(step=0, microbatch=2)
    assert first.fails(forward, tokens[:-2]).kind == "shape"
    assert first.fails(forward, b"\xff" * len(tokens)).kind == "shape"
    assert first.fails(forward).kind == "shape"
    for bad in (b"", damaged, unsealed, boundary + b"\0", tokens):
        failed = middle.fails(forward, bad)
        assert (failed.kind, failed.part) == ("codec", 0)
    backward = BackwardTask(step=0, microbatch=2)
    failed = middle.fails(backward, boundary, boundary)  # a forward tensor is no gradient
    assert (failed.kind, failed.part) == ("codec", 0)
    gradient = encode(torch.ones(SHAPE), "s8", direction="backward")
    seal(gradient)
    for given in ((), (bytes(gradient), boundary, boundary)):
        assert middle.fails(backward, *given).kind == "shape"
    loss = LossTask(step=0, microbatch=2)
    assert last.fails(loss).kind == "shape"
    assert last.fails(loss, boundary, b"").kind == last.fails(loss, boundary).kind == "shape"
    assert last.fails(forward, boundary).kind == "shape"


def test_local_steps_equal_plain_training() -> None:
    """The worker's optimizer step against torch's own AdamW and clipping; sums in another order
    made 3e-6 to 1.7e-5 of six texts."""
    chain = Chain([4], model="llama", microbatches=2)
    (worker,), config = chain.workers, OPTIMIZER
    module = build_whole(MODELS["llama"], SEED)
    decayed = [p for p in module.parameters() if p.ndim >= 2]
    others = [p for p in module.parameters() if p.ndim < 2]
    groups = [{"params": decayed}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(
        groups, betas=(config.beta1, config.beta2), weight_decay=config.weight_decay
    )
    count = 2 * SEQUENCES * TOKENS
    for step in range(5):
        for microbatch in (2 * step, 2 * step + 1):
            chain.run(microbatch, step=step)
            inputs, targets = token_tensors(tokens_of(microbatch))
            (summed_loss(module(inputs), targets) / count).backward()
        norm = torch.nn.utils.clip_grad_norm_(module.parameters(), stage_clip(config, 1))
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(config, step)
        optimizer.step()
        optimizer.zero_grad()
        applied, _ = worker.call(ApplyTask(step=step))
        assert worker.replica.version == step + 1
        assert applied.grad_norm == pytest.approx(float(norm), rel=1e-5)
    state = worker.replica.flat.views(worker.replica.flat.values)
    for name, parameter in module.named_parameters():
        assert relative_error(state[name], parameter.detach()) < 1e-4, name


def test_nothing_works_before_a_stage_is_open() -> None:
    worker = LocalWorker()
    for request in (
        ForwardTask(step=0, microbatch=0),
        Save(version=0, path="x"),
        Load(version=0, path="x"),
    ):
        assert worker.fails(request).message == "no stage is open"


@pytest.mark.parametrize("device", ["quantum", "cuda:99"])
def test_unknown_devices_are_refused(device) -> None:
    assert LocalWorker().fails(open_request(0, [2, 2], device=device)).kind == "shape"


@pytest.mark.parametrize("vocab", [1 << 16, 70_000])
def test_a_large_vocabulary_is_trained(vocab) -> None:
    """Manifests have always allowed one that does not fit tokens of two bytes."""
    spec = ModelSpec("gpt", 2, 8, 1, 1, 8, TOKENS, vocab)
    workers = [opened(stage, [1, 1], model=spec) for stage in range(2)]
    dtype = np.dtype("<u2" if vocab <= 1 << 16 else "<u4")
    tokens = np.full((SEQUENCES, TOKENS + 1), vocab - 1, dtype)
    (boundary,) = workers[0].call(ForwardTask(step=0, microbatch=0), tokens.tobytes())[1]
    request = LossTask(step=0, microbatch=0)
    reply, _ = workers[1].call(request, boundary, tokens.tobytes())
    assert reply.loss_sum / tokens[:, 1:].size == pytest.approx(math.log(vocab), rel=0.05)
    wrong = tokens.tobytes()[: -dtype.itemsize]
    request = LossTask(step=0, microbatch=1)
    assert workers[1].fails(request, boundary, wrong).kind == "shape"


def test_running_out_of_memory_is_survived(monkeypatch) -> None:
    chain = Chain([2, 2])
    (gradient,), first, (before, _) = chain.run(1).gradients, chain.workers[0], chain.sums
    first.call(ForwardTask(step=0, microbatch=1), tokens_of(1))
    assert first.replica.graphs
    with monkeypatch.context() as patch:
        patch.setattr(device, "probe", lambda request: torch.empty(1 << 50))
        assert first.fails(Probe(sizes=[])).kind == "oom"
    assert not first.replica.graphs, "given up also for what is no pass"
    first.call(ForwardTask(step=0, microbatch=2), tokens_of(1))
    with monkeypatch.context() as patch:
        patch.setattr(first.replica.module, "forward", lambda *given: torch.empty(1 << 50))
        assert first.fails(ForwardTask(step=0, microbatch=3), tokens_of(1)).kind == "oom"
    assert torch.equal(first.replica.gradient_sum, before)
    backward = BackwardTask(step=0, microbatch=2)
    assert first.fails(backward, gradient).kind == "graph"  # given up to free memory
    first.call(backward, gradient, tokens_of(1))


def test_a_worker_does_without_sympy(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.fx.experimental.symbolic_shapes", None)
    Chain([2, 2]).run(1)


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_warming_up_changes_nothing(stage) -> None:
    worker = opened(stage, [1, 2, 1], boundary="s8")
    before = worker.replica.state_hash()
    device.warm_up(worker.replica)
    assert worker.replica.state_hash() == before
    assert not worker.replica.gradient_sum.any()
    assert not worker.replica.counted


@pytest.mark.parametrize(
    ("gradient", "tokens", "largest", "expected"),
    [
        ([3.0, 4.0], 1, 10.0, 1.0),
        ([3.0, 4.0], 1, 1.0, 0.2),
        ([3.0, 4.0], 10, 1.0, 0.1),
        ([3.0, 4.0], 2, 1.0, 0.2),
        ([3.0, 4.0], 2, 0.0, 0.5),
        ([0.0, 0.0], 2, 1.0, 0.5),
        ([1e30, 0.0], 1, 1.0, 1e-30),
    ],
)
def test_a_large_gradient_is_clipped(
    gradient: list[float], tokens: int, largest: float, expected: float
) -> None:
    norm = squared_norm(torch.tensor(gradient))
    assert step_scale(norm, tokens, largest) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("model", ["gpt", "llama", "mixtral"])
def test_gradients_are_fp32_and_near_those_of_fp32(model: str) -> None:
    sums = {}
    for precision in ("fp32", "bf16"):
        worker = opened(0, [4], model=model, precision=precision)
        worker.call(LossTask(step=0, microbatch=1), tokens_of(1))
        sums[precision] = worker.replica.gradient_sum
        assert all(buffer.dtype == torch.float32 for buffer in buffers_of(worker.replica))
    apart = relative_error(sums["bf16"], sums["fp32"])
    assert 1e-5 < apart < 5e-2


@pytest.mark.parametrize(
    ("card", "compute", "expected"),
    [
        (True, "auto", "bf16"),
        (False, "auto", "fp32"),
        (True, "fp32", "fp32"),
        (False, "bf16", "bf16"),
    ],
)
def test_a_worker_computes_in_what_its_own_device_is_fast_in(
    card: bool, compute: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica, "_is_fast", lambda _: card)
    assert opened(0, [4], precision=compute).replica.module.precision == expected
