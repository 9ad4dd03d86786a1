"""The reference trainer learns, repeats itself bit for bit, and simulates the wire."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import torch
from torch import Tensor

from client.compute.replica import squared_norm, step_scale
from model_zoo.data import Corpus, DataError
from model_zoo.flat import FlatParameters
from model_zoo.optimizers.adamw import FlatAdamW
from model_zoo.reference import TrainingPlan, WireContext, evaluate, train_reference
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.optimizer import OptimizerSpec, learning_rate, stage_clip
from model_zoo.specs.slices import slices
from model_zoo.stages import build_stage, summed_loss
from model_zoo.whole import build_whole, load_whole

OPTIMIZER = OptimizerSpec(3e-3, 3e-4, warmup_steps=5, decay_steps=40, beta2=0.95, clip=0.5)


def plan_for(spec: ModelSpec, cut: tuple[int, ...] = (2, 2), steps: int = 4) -> TrainingPlan:
    return TrainingPlan(spec, cut, OPTIMIZER, 11, steps, 2, 3)


def identity(x: Tensor, place: WireContext) -> Tensor:
    return x.clone()


def test_loss_falls(spec: ModelSpec, corpus: Corpus) -> None:
    seen: list[tuple[int, float]] = []
    plan = plan_for(spec, steps=40)
    run = train_reference(plan, corpus, on_step=lambda step, loss: seen.append((step, loss)))
    assert seen == list(enumerate(run.losses))
    assert run.losses[0] == pytest.approx(5.55, abs=0.1)  # ln 256
    assert run.losses[-1] < run.losses[0] - 1.5
    model = load_whole(spec, run.state)
    held_out = evaluate(model, corpus, batches=3, sequences=4, context=spec.context)
    assert held_out == pytest.approx(run.losses[-1], abs=0.5)


def test_repeats_itself_bit_for_bit(spec: ModelSpec, corpus: Corpus) -> None:
    first, second = (train_reference(plan_for(spec), corpus, threads=1) for _ in range(2))
    assert first.losses == second.losses
    assert all(torch.equal(first.state[name], second.state[name]) for name in first.state)


@pytest.mark.parametrize("cut", [(2, 2), (1, 2, 1), (1, 1, 1, 1)])
def test_a_perfect_wire_changes_nothing(
    spec: ModelSpec, corpus: Corpus, cut: tuple[int, ...]
) -> None:
    plan = plan_for(spec, cut, steps=8)
    plain = train_reference(plan, corpus)
    wired = train_reference(plan, corpus, wire=identity)
    assert wired.losses == pytest.approx(plain.losses, rel=1e-6)
    for name, tensor in plain.state.items():
        torch.testing.assert_close(wired.state[name], tensor, rtol=1e-4, atol=1e-5)


def test_the_wire_sees_every_boundary_tensor_once(corpus: Corpus) -> None:
    spec = ModelSpec("gpt", 4, 32, 4, 4, 64, context=16)
    seen: list[WireContext] = []

    def wire(x: Tensor, place: WireContext) -> Tensor:
        assert x.shape == (3, 16, 32)
        seen.append(place)
        return x.clone()

    train_reference(plan_for(spec, (1, 2, 1), steps=2), corpus, wire=wire)
    expected = []
    for microbatch in range(4):
        step = microbatch // 2
        expected += [WireContext(step, microbatch, b, "forward") for b in (0, 1)]
        expected += [WireContext(step, microbatch, b, "backward") for b in (1, 0)]
    assert seen == expected


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_a_lossy_wire_is_felt(corpus: Corpus, direction: str) -> None:
    spec = ModelSpec("gpt", 4, 32, 4, 4, 64, context=16)

    def silence(x: Tensor, place: WireContext) -> Tensor:
        return torch.zeros_like(x) if place.direction == direction else x.clone()

    plan = plan_for(spec, steps=1)
    start = build_whole(spec, plan.seed).state_dict()
    state = train_reference(plan, corpus, wire=silence).state
    before_the_cut = "transformer.h.0.attn.c_attn.weight"
    no_decay = 1 - learning_rate(OPTIMIZER, 0) * OPTIMIZER.weight_decay
    moved = not torch.allclose(state[before_the_cut], start[before_the_cut] * no_decay, atol=1e-7)
    assert moved == (direction == "forward")


@pytest.mark.parametrize("change", [{}, {"clip": 0.0, "eps": 1e-3}], ids=["clip", "large-eps"])
def test_stages_with_the_flat_optimizer_agree(
    spec: ModelSpec, corpus: Corpus, change: dict[str, float]
) -> None:
    """Two implementations of one training: the swarm's arithmetic and the oracle.

    A large epsilon shows a wrong divisor, to which Adam is otherwise blind.
    """
    plan = plan_for(spec, (1, 3), steps=10)
    plan = replace(plan, optimizer=msgspec.structs.replace(OPTIMIZER, **change))  # type: ignore[arg-type]
    expected = train_reference(plan, corpus).losses
    stages = [build_stage(spec, part, plan.seed) for part in slices(plan.layers_per_stage)]
    flats = [FlatParameters(stage) for stage in stages]
    adamws = [FlatAdamW(flat.values, flat.decay_size, plan.optimizer) for flat in flats]
    losses = []
    for step in range(plan.steps):
        total = 0.0
        for microbatch in range(2 * step, 2 * step + 2):
            tokens = torch.from_numpy(corpus.sample(microbatch, 3, 16, plan.seed).astype("int64"))
            loss = summed_loss(stages[1](stages[0](tokens[:, :-1])), tokens[:, 1:])
            loss.backward()
            total += loss.item()
        losses.append(total / plan.tokens_per_step)
        for flat, adamw in zip(flats, adamws, strict=True):
            bound = stage_clip(plan.optimizer, 2)
            scale = step_scale(squared_norm(flat.gradients), plan.tokens_per_step, bound)
            adamw.step(flat.gradients, learning_rate(plan.optimizer, step), scale)
            flat.zero_gradients()
    assert losses == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("steps", [1, 2, 6])
def test_a_delayed_step_is_computed_before_the_update_of_the_step_before(
    spec: ModelSpec, corpus: Corpus, steps: int
) -> None:
    """Against a plain reading of the rule: every version is kept, step s reads max(s - 1, 0), and
    goes as far again as from the one before."""
    plan = replace(plan_for(spec, (4,), steps=steps), delayed=True)
    seen: list[tuple[int, float]] = []
    run = train_reference(plan, corpus, on_step=lambda step, loss: seen.append((step, loss)))
    model = build_whole(spec, plan.seed)
    flat = FlatParameters(model)
    adamw = FlatAdamW(flat.values, flat.decay_size, plan.optimizer)
    versions, losses = [flat.values.clone()], []
    for step in range(steps):
        newest, before = versions[max(step - 1, 0)], versions[max(step - 2, 0)]
        flat.values.copy_(newest + (newest - before))
        flat.zero_gradients()
        loss_sum = 0.0
        for microbatch in range(2 * step, 2 * step + 2):
            tokens = torch.from_numpy(corpus.sample(microbatch, 3, 16, plan.seed).astype("int64"))
            loss = summed_loss(model(tokens[:, :-1]), tokens[:, 1:])
            loss.backward()
            loss_sum += loss.item()
        losses.append(loss_sum / plan.tokens_per_step)
        flat.values.copy_(versions[step])
        norm = squared_norm(flat.gradients)
        scale = step_scale(norm, plan.tokens_per_step, plan.optimizer.clip)
        adamw.step(flat.gradients, learning_rate(plan.optimizer, step), scale)
        versions.append(flat.values.clone())
    assert run.losses == pytest.approx(losses, rel=1e-5)
    assert seen == list(enumerate(run.losses))
    for name, expected in flat.state().items():
        torch.testing.assert_close(run.state[name], expected, rtol=1e-4, atol=1e-5)


def test_delayed_updates_change_the_second_step_and_still_learn(
    spec: ModelSpec, corpus: Corpus
) -> None:
    plan = plan_for(spec, steps=40)
    plain = train_reference(plan, corpus).losses
    delayed = train_reference(replace(plan, delayed=True), corpus).losses
    assert delayed[0] == plain[0]
    assert delayed[1] != plain[1]
    assert delayed[-1] < delayed[0] - 1.5


def test_a_short_text_is_refused(tmp_path: Path, spec: ModelSpec) -> None:
    path = tmp_path / "short"
    path.write_bytes(b"short")
    with pytest.raises(DataError, match="one sample needs 17"):
        train_reference(plan_for(spec), Corpus.from_bytes_file(path))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers_per_stage": (2, 3)}, "do not make 4 layers"),
        ({"layers_per_stage": (4, 0)}, "at least one layer"),
        ({"steps": 0}, "steps must be"),
        ({"microbatches_per_step": -1}, "microbatches_per_step must be"),
        ({"sequences_per_microbatch": 0}, "sequences_per_microbatch must be"),
    ],
)
def test_plan_refuses(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(plan_for(ModelSpec("gpt", 4, 32, 4, 4, 64, context=16), (4,)), **change)  # type: ignore[arg-type]


def test_threads_are_given_back(corpus: Corpus) -> None:
    spec = ModelSpec("gpt", 1, 16, 2, 2, 32, context=8)
    during: list[int] = []
    train_reference(
        plan_for(spec, (1,), steps=1),
        corpus,
        threads=2,
        on_step=lambda step, loss: during.append(torch.get_num_threads()),
    )
    assert during == [2]
    assert torch.get_num_threads() == 1


# --- a run that is cut off ------------------------------------------------------------------------
