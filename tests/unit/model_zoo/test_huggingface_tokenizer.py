"""What transformers does with an export: `AutoTokenizer` finds our tokens, `pipeline` our text."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from model_zoo.export import export_hf
from model_zoo.models.family import State
from model_zoo.specs.model import ModelSpec
from model_zoo.stages import build_whole, load_whole
from model_zoo.tokenizers.bpe import Bpe, byte_tokenizer, train
from tests.support.sampling import generate

pytestmark = pytest.mark.filterwarnings("default")
transformers = pytest.importorskip("transformers", reason="needs transformers")

GPT = ModelSpec("gpt", 2, 32, 2, 2, 64, context=32)
LLAMA = ModelSpec("llama", 2, 32, 4, 2, 48, context=64)
WORDS = "the quick brown fox, über «40» lazy dogs\n"


def shaken(spec: ModelSpec) -> State:
    """Weights whose likeliest text does not end early."""
    state = build_whole(spec, seed=5).state_dict()
    return {name: tensor * 3 for name, tensor in state.items()}


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("bytes")
    export_hf(LLAMA, shaken(LLAMA), folder, byte_tokenizer())
    return transformers.AutoTokenizer.from_pretrained(folder)


@settings(deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"])))
@example("\r\n  a  b \ufeff\uffffe\u0301")
def test_a_byte_is_its_own_id_and_comes_back(theirs: Any, text: str) -> None:
    ids = theirs(text).input_ids
    assert bytes(ids) == text.encode()
    assert theirs.decode(ids) == text


@settings(deadline=None)
@given(st.binary())
def test_bytes_that_are_no_text_are_read_as_python_reads_them(theirs: Any, data: bytes) -> None:
    assert theirs.decode(list(data)) == data.decode(errors="replace")


@pytest.mark.parametrize("spec", [GPT, LLAMA], ids=["gpt", "llama"])
@pytest.mark.parametrize("tokenizer", [byte_tokenizer(), None], ids=["bytes", "tokens"])
def test_a_pipeline_writes_what_we_write(
    spec: ModelSpec, tokenizer: Bpe | None, tmp_path: Path
) -> None:
    """Without a length it ends with the model's longest sequence."""
    tokenizer = tokenizer or train([WORDS * 9], 270)
    spec = replace(spec, vocab=tokenizer.vocab)
    state = shaken(spec)
    export_hf(spec, state, tmp_path, tokenizer)
    write = transformers.pipeline("text-generation", model=str(tmp_path))
    found = write("the qui", do_sample=False, max_new_tokens=20, min_new_tokens=20)
    ours = generate(load_whole(spec, state), "the qui", 20, temperature=0, tokenizer=tokenizer)
    assert found[0]["generated_text"] == "the qui" + ours
    ids = write.tokenizer("the qui", return_tensors="pt")
    longest = write.model.generate(**ids, do_sample=False, min_length=spec.longest)
    assert longest.shape == (1, spec.longest)
