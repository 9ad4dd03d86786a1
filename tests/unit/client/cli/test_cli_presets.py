"""Presets have the published shapes, and say how many stages they need."""

import pytest
from msgspec.structs import replace

from client.cli.founding.fitting import check_stages, fewest_stages
from client.cli.founding.manifest import choose_model
from client.cli.founding.options import ModelChoices
from client.cli.founding.presets import PRESETS, PresetName
from client.errors import ExitCode, UserError
from model_zoo.specs.tokens import BYTE_VOCAB

UNTIED, TIED = False, True
PUBLISHED: dict[PresetName, tuple[int, bool]] = {
    "pythia-160m": (162_322_944, UNTIED),
    "gemma-3-270m": (268_098_176, TIED),
    "gemma-3-1b": (999_885_952, TIED),
    "pythia-1.4b": (1_414_647_808, UNTIED),
    "granite-3.3-2b": (2_533_525_504, TIED),
    "gemma-2-2b": (2_614_341_888, TIED),
    "starcoder2-3b": (3_030_371_328, TIED),
    "phi-3-mini": (3_821_079_552, UNTIED),
    "phi-4": (14_659_507_200, UNTIED),
    "gpt2-124m": (124_439_808, TIED),
    "smollm2-135m": (134_515_008, TIED),
    "smollm2-360m": (361_821_120, TIED),
    "qwen2.5-0.5b": (494_032_768, TIED),
    "qwen3-0.6b": (596_049_920, TIED),
    "llama-3.2-1b": (1_235_814_400, TIED),
    "olmo-2-1b": (1_484_916_736, UNTIED),
    "smollm2-1.7b": (1_711_376_384, TIED),
    "qwen3-1.7b": (1_720_574_976, TIED),
    "smollm3-3b": (3_075_098_624, TIED),
    "llama-3.2-3b": (3_212_749_824, TIED),
    "qwen3-4b": (4_022_468_096, TIED),
    "olmoe-1b-7b": (6_919_161_856, UNTIED),
    "olmo-2-7b": (7_298_617_344, UNTIED),
    "llama-3.1-8b": (8_030_261_248, UNTIED),
    "qwen3-8b": (8_190_735_360, UNTIED),
}
"""Parameters as their makers count them: a tied output projection is not counted again."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_parameters_are_as_many_as_published(name: PresetName) -> None:
    """In one stage; in several the first and the last one have a matrix each."""
    preset, (count, tied) = PRESETS[name], PUBLISHED[name]
    alone, cut = (choose_model(preset, ModelChoices(), preset.model.vocab, n) for n in (1, 2))
    assert alone.parameter_count == count
    assert cut.parameter_count == count + tied * cut.vocab * cut.width
    assert cut == preset.model


def test_no_published_shape_is_left_out() -> None:
    shaped = {name for name, preset in PRESETS.items() if preset.model.vocab != BYTE_VOCAB}
    assert shaped == PUBLISHED.keys()


def test_other_numbers_keep_the_switches_that_still_make_sense() -> None:
    preset = PRESETS["qwen3-0.6b"]
    same = choose_model(preset, ModelChoices(layers=2, context=64))
    assert (same.head_dim, same.norm_eps) == (128, 1e-6)
    narrower = choose_model(preset, ModelChoices(width=256, heads=4))
    assert (narrower.head_width, narrower.norm_eps) == (64, 1e-6)
    assert choose_model(preset, ModelChoices(architecture="gpt")).norm_eps == 1e-5
    rotated = PRESETS["pythia-160m"]
    shapes = ((768, 12), (256, 8), (32, 4), (6, 3))
    models = (choose_model(rotated, ModelChoices(width=w, heads=h)) for w, h in shapes)
    assert [model.rope.dims for model in models] == [16, 8, 2, None], "a quarter, at least two"


LARGE = replace(PRESETS["llama-3.1-8b"].model, layers=96)
"""22 billion parameters."""


def test_a_model_that_is_too_large_says_how_many_stages_it_needs() -> None:
    with pytest.raises(UserError, match="too many for --stages 2") as caught:
        check_stages(LARGE, 2)
    assert caught.value.exit_code == ExitCode.USAGE
    fewest = fewest_stages(LARGE)
    assert f"--stages {fewest} " in caught.value.next_step
    check_stages(LARGE, fewest)
    with pytest.raises(UserError):
        check_stages(LARGE, fewest - 1)


def test_a_model_that_fits_no_stages_says_so() -> None:
    with pytest.raises(UserError, match="no number of stages suffices") as caught:
        check_stages(replace(LARGE, width=8192, vocab=1_000_000), 16)
    assert "smaller vocabulary" in caught.value.next_step
