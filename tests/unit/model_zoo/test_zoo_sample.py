"""The reference trainer learns; and sampling: greedy text, seeds, cuts of the distribution."""

import pytest
import torch

from client.lab.reference import evaluate, train_reference
from model_zoo import sample
from model_zoo.datasets.corpus import Corpus
from model_zoo.sample import stream
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.optimizer import OptimizerSpec
from model_zoo.stages import build_whole, load_whole
from model_zoo.threads import limited_threads
from tests.support.compute_stages import small_run
from tests.support.sampling import generate
from tests.support.small_models import SPECS

SPEC = ModelSpec("llama", 2, 32, 4, 2, 64, context=24)


def test_a_trained_model_continues_its_text(corpus: Corpus) -> None:
    optimizer = OptimizerSpec(1e-2, 1e-3, warmup_steps=5, decay_steps=120, beta2=0.95)
    run = small_run(
        [2], model=SPEC, optimizer=optimizer, seed=0, steps=120, microbatches=1, sequences=8
    )
    model = load_whole(SPEC, train_reference(run, corpus).state)
    text = generate(model, "the quick brown ", 30, temperature=0)
    assert text == "fox jumps over the lazy dog. t"


@pytest.mark.parametrize("name", ["gpt", "llama", "mixtral"])
def test_loss_falls(name: str, corpus: Corpus) -> None:
    spec = SPECS[name]
    seen: list[tuple[int, float]] = []
    optimizer = OptimizerSpec(3e-3, 3e-4, warmup_steps=5, decay_steps=40, beta2=0.95, clip=0.5)
    small = small_run(
        [2, 2], model=spec, optimizer=optimizer, seed=11, steps=40, microbatches=2, sequences=3
    )
    run = train_reference(small, corpus, on_step=lambda step, loss: seen.append((step, loss)))
    assert seen == list(enumerate(run.losses))
    assert run.losses[0] == pytest.approx(5.55, abs=0.1)  # ln 256
    assert run.losses[-1] < run.losses[0] - 1.5
    model = load_whole(spec, run.state)
    held_out = evaluate(model, corpus, batches=3, sequences=4, context=spec.context)
    assert held_out == pytest.approx(run.losses[-1], abs=0.5)


def test_top_one_is_greedy() -> None:
    model = build_whole(SPEC, seed=0)
    greedy = generate(model, "abc", 40, temperature=0)
    assert generate(model, "abc", 40, top_k=1, seed=5) == greedy


def test_no_token_beyond_a_byte_is_drawn() -> None:
    spec = ModelSpec("gpt", 1, 16, 2, 2, 32, context=8, vocab=1000)
    model = build_whole(spec, seed=0)
    with torch.no_grad():
        model.get_parameter("lm_head.weight")[256:] = 100.0
    assert generate(model, "a", 5) is not None


@pytest.mark.parametrize("few", [True, False])
def test_few_parameters_are_drawn_from_by_one_thread(
    monkeypatch: pytest.MonkeyPatch, few: bool
) -> None:
    """Beside a volunteer that trains on all cores several threads wait for each other."""
    monkeypatch.setattr(sample, "ONE_THREAD", SPEC.parameter_count - (not few))
    model, used = build_whole(SPEC, seed=0), set()
    model.register_forward_pre_hook(lambda *_: used.add(torch.get_num_threads()))
    with limited_threads(2):
        generate(model, "a", 3)
        assert torch.get_num_threads() == 2
    assert used == {1 if few else 2}


@pytest.mark.parametrize(
    ("prompt", "settings", "words"),
    [
        ("", {}, "needs a prompt"),
        ("a", {"temperature": -1.0}, "needs a temperature"),
        ("a", {"top_k": 0}, "and a top_k >= 1"),
    ],
)
def test_refuses(prompt: str, settings: dict[str, float], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        generate(build_whole(SPEC, seed=0), prompt, 5, **settings)  # type: ignore[arg-type]


def test_refuses_a_prompt_beyond_the_vocabulary() -> None:
    spec = ModelSpec("gpt", 1, 16, 2, 2, 32, context=8, vocab=100)
    with pytest.raises(ValueError, match="beyond the vocabulary"):
        generate(build_whole(spec, seed=0), "é", 5)


def test_text_comes_as_it_is_drawn() -> None:
    """A character is there before the next one is computed, and none is cut in two."""
    model = build_whole(SPEC, seed=0)
    calls: list[int] = []
    model.register_forward_hook(lambda *_: calls.append(1))
    pieces = stream(model, "é", 60)
    first = next(pieces)
    assert 1 <= len(calls) < 10
    assert first + "".join(pieces) == generate(build_whole(SPEC, seed=0), "é", 60)
    assert len(calls) == 60
