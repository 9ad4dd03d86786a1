"""GGUF files: every tensor and number is in them, and llama.cpp computes with them what we do."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from model_zoo.huggingface.dtypes import DType
from model_zoo.llama_cpp.architecture import NotInGguf, architecture, longest
from model_zoo.llama_cpp.tensors import neighbours
from model_zoo.llama_cpp.vocabulary import vocabulary
from model_zoo.llama_cpp.writing import export_gguf
from model_zoo.models.family import State
from model_zoo.models.llama import rotary_tables, rotate
from model_zoo.specs.architecture import Experts, Rope, Scales
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.packages import load
from model_zoo.specs.tokens import ChatFormat
from model_zoo.stages import build_whole, load_whole
from model_zoo.tokenizers.bpe import Bpe, byte_tokenizer, train
from tests.support.sampling import generate

LLAMA_CPP = os.environ.get("TEST_LLAMA_CPP_PYTHON", "")
"""An interpreter with llama-cpp-python; its tests need no network."""
needs_llama_cpp = pytest.mark.skipif(
    not LLAMA_CPP, reason="TEST_LLAMA_CPP_PYTHON names no interpreter with llama-cpp-python"
)
LLAMA = ModelSpec("llama", 3, 32, 4, 2, 48, context=64)


CAPS = Scales(attention_cap=50.0, logits_cap=30.0)


def like(family: str, **changes: Any) -> ModelSpec:
    return replace(LLAMA, architecture=family, **changes)


GPT = ModelSpec("gpt", 3, 32, 4, 4, 64, context=64)
SPECS = {
    "gpt2": replace(GPT, bias=True, gelu="new"),
    "gpt2 without biases": GPT,
    "llama": LLAMA,
    "llama 3": replace(LLAMA, rope=Rope("llama3", 8.0, 1.0, 4.0, 16), rope_theta=500.0),
    "llama, linear": replace(LLAMA, rope=Rope("linear", 4.0), norm_eps=1e-6),
    "llama, head_dim": replace(LLAMA, head_dim=12),
    "mistral": like("mistral", window=24),
    "smollm3": like("smollm3", layers=5, nope_every=4),
    "qwen2": like("qwen2"),
    "qwen3": like("qwen3", head_dim=12),
    "olmo2": like("olmo2"),
    "mixtral": like("mixtral", experts=Experts(4, 2)),
    "qwen3moe": like("qwen3_moe", experts=Experts(4, 2)),
    "llama, yarn": replace(LLAMA, rope=Rope("yarn", 4.0, 1.0, 32.0, 16)),
    "granite": like("granite", scales=Scales(12.0, 0.2, 0.22, 8.0)),
    "phi3": like("phi3", rope=Rope(dims=6)),
    "starcoder2": like("starcoder2"),
    "gemma2": like("gemma2", head_dim=12, window=24, full_every=2, scales=CAPS, tied=True),
    "gemma3": like("gemma3", layers=6, window=24, full_every=6, local_theta=10_000.0),
    "gptneox": like("gpt_neox", kv_heads=4, rope=Rope(dims=2)),
    "olmoe": like("olmoe", kv_heads=4, experts=Experts(4, 2, "all")),
}
TEXTS = [
    "the quick brown fox\n\n  jumps  over\t12345 lazy dogs, aren't they?",
    "Über «größe» naïve 漢字 🦊 e\u0301 ... !!! it's HE'LL don't 3.14159 \r\n x",
    " leading and trailing  ",
]
WORDS = "\n".join(TEXTS) * 9


@pytest.fixture(params=list(SPECS.values()), ids=list(SPECS))
def spec(request: pytest.FixtureRequest) -> ModelSpec:
    result: ModelSpec = request.param
    return result


def shaken(spec: ModelSpec) -> State:
    """Weights of which none is at its initial value."""
    generator = torch.Generator().manual_seed(0)
    state = build_whole(spec, seed=0).state_dict()
    return {n: t + 0.2 * torch.randn(t.shape, generator=generator) for n, t in state.items()}


def read(path: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """The keys and tensors of a file, as the `gguf` package reads them."""
    gguf = pytest.importorskip("gguf", reason="needs the extra volunteer[gguf]")
    reader = gguf.GGUFReader(path)
    keys = {name: field.contents() for name, field in reader.fields.items()}
    tensors = {}
    for one in reader.tensors:
        found = gguf.quants.dequantize(one.data, one.tensor_type)
        tensors[one.name] = torch.from_numpy(found.copy().reshape(one.shape.tolist()[::-1]))
    return keys, tensors


def written(spec: ModelSpec, state: State, folder: Path, dtype: DType = "fp32") -> Path:
    pytest.importorskip("gguf", reason="needs the extra volunteer[gguf]")
    return export_gguf(spec, state, folder / "model.gguf", byte_tokenizer(), dtype, "mine")


def numbers(spec: ModelSpec) -> int:
    """How many numbers a whole model has, with the biases that llama.cpp's GPT-2 always has."""
    whole = replace(spec, bias=True) if spec.architecture == "gpt" else spec
    return whole.parameter_count


def test_every_number_of_ours_is_in_the_file(spec: ModelSpec, tmp_path: Path) -> None:
    state = shaken(spec)
    keys, tensors = read(written(spec, state, tmp_path))
    extra = tensors.pop("rope_freqs.weight", torch.empty(0))
    assert (extra.numel() > 0) == (spec.rope.kind == "llama3")
    assert sum(tensor.numel() for tensor in tensors.values()) == numbers(spec)
    theirs = torch.cat([tensor.flatten() for tensor in tensors.values()]).sort().values
    if not spec.facts.first_gain:  # theirs begin with 1
        state = {n: t + 1 if n.endswith("norm.weight") else t for n, t in state.items()}
    ours = torch.cat([tensor.flatten() for tensor in state.values()]).sort().values
    assert torch.equal(theirs[theirs != 0], ours[ours != 0])
    name = keys["general.architecture"]
    assert keys[f"{name}.block_count"] == spec.layers
    assert keys[f"{name}.context_length"] == longest(spec)
    assert longest(spec) == (24 if spec.architecture == "mistral" else 64)
    assert keys[f"{name}.attention.head_count_kv"] == spec.kv_heads
    assert keys["general.name"] == "mine"


def test_matrices_are_where_llama_cpp_looks(tmp_path: Path) -> None:
    spec = SPECS["qwen3moe"]
    state = shaken(spec)
    _, tensors = read(written(spec, state, tmp_path))
    assert not spec.facts.rotates_neighbours
    for theirs, ours in {
        "attn_k": "self_attn.k_proj",
        "ffn_gate_inp": "mlp.gate",
    }.items():
        matrix = state[f"model.layers.1.{ours}.weight"]
        assert torch.equal(tensors[f"blk.1.{theirs}.weight"], matrix), theirs
    gates, ups = state["model.layers.1.mlp.experts.gate_up_proj"].chunk(2, dim=1)
    downs = state["model.layers.1.mlp.experts.down_proj"]
    for theirs, matrices in {"gate": gates, "up": ups, "down": downs}.items():
        assert torch.equal(tensors[f"blk.1.ffn_{theirs}_exps.weight"], matrices), theirs
    _, plain = read(written(LLAMA, shaken(LLAMA), tmp_path))
    rows = shaken(LLAMA)["model.layers.0.self_attn.q_proj.weight"]
    assert torch.equal(plain["blk.0.attn_q.weight"], neighbours(rows, 8))
    values = shaken(LLAMA)["model.layers.0.self_attn.v_proj.weight"]
    assert torch.equal(plain["blk.0.attn_v.weight"], values)
    _, olmo = read(written(SPECS["olmo2"], shaken(SPECS["olmo2"]), tmp_path))
    after = shaken(SPECS["olmo2"])["model.layers.2.post_attention_layernorm.weight"]
    assert torch.equal(olmo["blk.2.post_attention_norm.weight"], after)


def test_neighbours_turn_by_the_angles_that_halves_turned_by() -> None:
    cos, sin = rotary_tables(LLAMA)
    x = torch.randn(1, 1, 64, 8, generator=torch.Generator().manual_seed(2))
    expected = rotate(x, cos, sin)[0, 0]  # (T, D)
    moved = neighbours(x[0, 0].T, 8).T
    first, second = moved[:, 0::2], moved[:, 1::2]
    turned = torch.stack((first * cos - second * sin, second * cos + first * sin), dim=-1)
    torch.testing.assert_close(turned.flatten(1), neighbours(expected.T, 8).T)


@pytest.mark.parametrize(("dtype", "kind"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_matrices_are_rounded_and_vectors_are_not(
    dtype: DType, kind: torch.dtype, tmp_path: Path
) -> None:
    spec, state = SPECS["gpt2"], shaken(SPECS["gpt2"])
    keys, tensors = read(written(spec, state, tmp_path, dtype))
    matrix = state["transformer.h.0.attn.c_attn.weight"]
    assert torch.equal(tensors["blk.0.attn_qkv.weight"], matrix.to(kind).float())
    assert torch.equal(tensors["blk.0.attn_norm.weight"], state["transformer.h.0.ln_1.weight"])
    assert torch.equal(tensors["position_embd.weight"], state["transformer.wpe.weight"])
    assert keys["general.file_type"] == {"fp16": 1, "bf16": 32}[dtype]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (replace(SPECS["qwen3moe"], experts=Experts(4, 2, "all")), "only shares of the chosen"),
        (replace(SPECS["olmoe"], experts=Experts(4, 2)), "only shares of all experts"),
        (replace(SPECS["olmoe"], kv_heads=2), "as many key heads"),
        (replace(SPECS["smollm3"], nope_every=3), "every 4th layer"),
        (replace(SPECS["gemma2"], tied=False), "projects with the embedding"),
        (replace(SPECS["gemma2"], scales=Scales()), "bounds scores and logits"),
        (replace(SPECS["gemma2"], layers=46), "usual scale of scores"),
        (replace(SPECS["gemma3"], full_every=2), "in every 6th layer"),
        (replace(SPECS["gemma3"], local_theta=500.0), "angles of 10,000 in windows"),
        (replace(SPECS["gemma3"], scales=Scales(attention=0.5)), "usual scale of scores"),
        (replace(LLAMA, rope=Rope("yarn", 4.0, 1.0, 32.0, 16, 1.5)), "its usual numbers only"),
        (replace(SPECS["qwen3"], rope=Rope("llama3", 8.0)), "scaling of rotary angles"),
    ],
)
def test_what_llama_cpp_would_compute_otherwise_is_refused(
    changed: ModelSpec, words: str, tmp_path: Path
) -> None:
    with pytest.raises(NotInGguf, match=words):
        written(changed, shaken(changed), tmp_path)
    assert not list(tmp_path.iterdir())


def test_families_say_what_else_llama_cpp_has_otherwise(tmp_path: Path) -> None:
    _, found = read(written(SPECS["gptneox"], state := shaken(SPECS["gptneox"]), tmp_path))
    heads = state["gpt_neox.layers.1.attention.query_key_value.weight"].view(4, 3, 8, 32)
    queries, keys, values = found["blk.1.attn_qkv.weight"].view(3, 4, 8, 32)
    assert torch.equal(queries, heads[:, 0])
    assert torch.equal(keys, heads[:, 1])
    assert torch.equal(values, heads[:, 2])
    words, _ = read(written(SPECS["granite"], shaken(SPECS["granite"]), tmp_path))
    assert words["granite.residual_scale"] == pytest.approx(0.22)
    assert words["granite.attention.scale"] == pytest.approx(0.2)
    assert words["granite.logit_scale"] == 8
    words, _ = read(written(SPECS["gemma2"], shaken(SPECS["gemma2"]), tmp_path))
    assert words["gemma2.attention.sliding_window"] == 24
    assert words["gemma2.attn_logit_softcapping"] == 50
    largest = replace(SPECS["gemma2"], layers=46, scales=replace(CAPS, attention=8**-0.5))
    assert architecture(largest) == "gemma2"
    words, _ = read(written(SPECS["llama, yarn"], shaken(LLAMA), tmp_path))
    assert words["llama.rope.scaling.original_context_length"] == 16


def test_too_large_for_fp16_is_said_and_an_older_file_stays(tmp_path: Path) -> None:
    state = shaken(LLAMA)
    before = written(LLAMA, state, tmp_path).read_bytes()
    state["model.layers.0.mlp.up_proj.weight"][3, 4] = 1e5
    with pytest.raises(NotInGguf, match="beyond fp16: --dtype bf16"):
        written(LLAMA, state, tmp_path, "fp16")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [before]
    del state["model.norm.weight"]
    with pytest.raises(ValueError, match=r"model\.norm\.weight is missing"):
        written(LLAMA, state, tmp_path)


# --- tokenizers ----------------------------------------------------------------------------------


LEVEL = {
    "type": "ByteLevel",
    "add_prefix_space": False,
    "trim_offsets": True,
    "use_regex": True,
}


def changed(tokenizer: Bpe, **parts: Any) -> Bpe:
    file = json.loads(tokenizer.data)
    file["model"] |= parts.pop("model", {})
    return Bpe(json.dumps(file | parts).encode(), tokenizer.chat)


def split(pattern: str) -> dict[str, Any]:
    level = LEVEL | {"use_regex": False}
    cut = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [cut, level]}


def trained(pre_tokenizer: dict[str, Any], **model: Any) -> Bpe:
    """Byte-level, trained on words that are cut as `pre_tokenizer` says."""
    library = load("tokenizers")
    bare = changed(train([WORDS], 257), pre_tokenizer=pre_tokenizer)
    made = library.Tokenizer.from_str(bare.data.decode())
    trainer = library.trainers.BpeTrainer(
        vocab_size=360,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=sorted(library.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    made.train_from_iterator([WORDS], trainer)
    return changed(Bpe(made.to_str().encode()), model=model)


HEAD = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
DIGITS = {
    "type": "Sequence",
    "pretokenizers": [
        {"type": "Digits", "individual_digits": True},
        LEVEL,
    ],
}


def fallen_back() -> Bpe:
    """As SentencePiece's models are converted: every way to make a word is a merge."""
    pieces = ["▁th", "th", "he", "▁the", "ck", "qu", "▁qu", "ui", "▁q", "▁t", "la", "▁la", "az"]
    letters = sorted(set("▁ \n" + "abcdefghijklmnopqrstuvwxyz,?'"))
    words = ["<unk>", "<s>", "</s>", *(f"<0x{n:02X}>" for n in range(256)), *pieces, *letters]
    vocab = {word: token for token, word in enumerate(words)}
    merges = [
        (word[:at], word[at:])
        for word in sorted(pieces, key=vocab.__getitem__)
        for at in range(1, len(word))
        if word[:at] in vocab and word[at:] in vocab
    ]
    special = [
        {"id": token, "content": word, "special": True}
        | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        for token, word in enumerate(words[:3])
    ]
    file = {
        "version": "1.0",
        "added_tokens": special,
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "Prepend", "prepend": "▁"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
            ],
        },
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [
                {"SpecialToken": {"id": "<s>", "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}},
            ],
            "pair": [
                {"Sequence": {"id": "A", "type_id": 0}},
                {"Sequence": {"id": "B", "type_id": 1}},
            ],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
        },
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
            ],
        },
        "model": {
            "type": "BPE",
            "vocab": vocab,
            "merges": merges,
            "unk_token": "<unk>",
            "fuse_unk": True,
            "byte_fallback": True,
        },
    }
    return Bpe(json.dumps(file).encode())


LLAMA_3, QWEN_2 = (HEAD + number + TAIL for number in (r"\p{N}{1,3}", r"\p{N}"))
TOKENIZERS = {
    "bytes": (byte_tokenizer, "gpt-2"),
    "gpt-2": (lambda: train([WORDS], 400), "gpt-2"),
    "smollm": (lambda: trained(DIGITS), "smollm"),
    "llama 3": (
        lambda: trained(split(LLAMA_3), ignore_merges=True),
        "llama-bpe",
    ),
    "olmo 2": (lambda: trained(split(LLAMA_3)), "dbrx"),
    "qwen 2": (lambda: trained(split(QWEN_2)), "qwen2"),
    "sentencepiece": (fallen_back, "default"),
}


@pytest.fixture(params=list(TOKENIZERS))
def tokenizer(request: pytest.FixtureRequest) -> tuple[Bpe, str]:
    make, name = TOKENIZERS[request.param]
    return make(), name


def test_a_tokenizer_is_described(tokenizer: tuple[Bpe, str]) -> None:
    bpe, name = tokenizer
    found = vocabulary(bpe, bpe.vocab + 3)
    tokens = found["tokenizer.ggml.tokens"]
    assert len(set(tokens)) == bpe.vocab + 3
    assert [bpe.token_of(str(word)) for word in tokens[: bpe.vocab]] == list(range(bpe.vocab))
    assert found["tokenizer.ggml.token_type"][-3:] == [5, 5, 5]  # type: ignore[index]
    assert found["tokenizer.ggml.pre"] == name
    ends = bpe.end_of_text or 0
    assert found["tokenizer.ggml.eos_token_id"] == ends
    assert found["tokenizer.ggml.add_bos_token"] is (name == "default")
    assert "tokenizer.chat_template" not in found
    chat = Bpe(bpe.data, ChatFormat("{{ messages }}"))
    assert vocabulary(chat, bpe.vocab)["tokenizer.chat_template"] == "{{ messages }}"


BROKEN_TEMPLATE = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>"}}]}
TWICE = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "a"}}, {"Sequence": {"id": "A"}}],
    "special_tokens": {"a": {"ids": [1, 2]}},
}


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"pre_tokenizer": split(r"\w+")}, "does not have the pattern"),
        ({"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True}}, "no blank before"),
        ({"normalizer": {"type": "Lowercase"}}, "does not change texts beforehand"),
        ({"model": {"end_of_word_suffix": "</w>"}}, "marks the ends of words"),
        ({"post_processor": BROKEN_TEMPLATE}, "template is malformed"),
        ({"post_processor": TWICE}, "one special token before"),
        ({"added_tokens": []}, "needs a token for the end"),
    ],
)
def test_a_tokenizer_that_llama_cpp_lacks_is_refused(parts: dict[str, Any], words: str) -> None:
    other = train([WORDS], 300)
    if "added_tokens" in parts:
        vocab = json.loads(other.data)["model"]["vocab"]
        parts = parts | {"model": {"vocab": {w: t for w, t in vocab.items() if w[:2] != "<|"}}}
    with pytest.raises(NotInGguf, match=words):
        vocabulary(changed(other, **parts), other.vocab)


def test_merges_that_scores_cannot_tell_are_refused() -> None:
    whole = fallen_back()
    merges = [pair for pair in json.loads(whole.data)["model"]["merges"] if pair != ["▁", "th"]]
    with pytest.raises(NotInGguf, match="in another order"):
        vocabulary(changed(whole, model={"merges": merges}), whole.vocab)


# --- llama.cpp itself ----------------------------------------------------------------------------

ASK = """
import json, sys
import llama_cpp
import numpy as np
path, texts, length = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
model = llama_cpp.Llama(path, n_ctx=64, n_threads=1, logits_all=True, verbose=False)
tokens = [model.tokenize(text.encode(), add_bos=False, special=False) for text in texts]
pieces = [model.detokenize(some).decode("utf-8", "replace") for some in tokens]
drawn, logits = [], []
if length:
    model.eval(tokens[0])
    logits = model.scores[: len(tokens[0])].tolist()
    for _ in range(length):
        token = int(np.argmax(model.scores[model.n_tokens - 1]))
        drawn.append(token)
        model.eval([token])
print(json.dumps([tokens, pieces, drawn, logits]))
"""


def asked(path: Path, texts: list[str], length: int) -> Any:
    done = subprocess.run(
        [LLAMA_CPP, "-c", ASK, str(path), json.dumps(texts), str(length)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@needs_llama_cpp
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_llama_cpp_draws_the_tokens_that_we_draw(
    spec: ModelSpec, dtype: DType, tmp_path: Path
) -> None:
    """In the smaller types the logits are only near: rounded weights are another model."""
    state = shaken(spec)
    if dtype != "fp32":
        kind = {"bf16": torch.bfloat16, "fp16": torch.float16}[dtype]
        state = {n: t.to(kind).float() if t.ndim > 1 else t for n, t in state.items()}
    prompt, length = "the quick", 12
    (tokens,), _, drawn, logits = asked(written(spec, state, tmp_path, dtype), [prompt], length)
    assert bytes(tokens) == prompt.encode()
    model = load_whole(spec, state)
    with torch.no_grad():
        expected = model(torch.tensor([tokens]))[0]
    assert expected.std() > 0.5
    near = {"fp32": 0.02, "bf16": 0.2, "fp16": 0.05}[dtype]
    torch.testing.assert_close(torch.tensor(logits), expected, rtol=0, atol=near)
    if dtype == "fp32":
        text = generate(model, prompt, length, temperature=0)
        assert bytes(drawn).decode(errors="replace") == text


@needs_llama_cpp
def test_llama_cpp_cuts_texts_as_we_do(tokenizer: tuple[Bpe, str], tmp_path: Path) -> None:
    pytest.importorskip("gguf", reason="needs the extra volunteer[gguf]")
    bpe, _ = tokenizer
    spec = replace(LLAMA, vocab=bpe.vocab)
    path = export_gguf(spec, shaken(spec), tmp_path / "model.gguf", bpe, "fp32")
    tokens, pieces, _, _ = asked(path, TEXTS, 0)
    for text, theirs in zip(TEXTS, tokens, strict=True):
        ours = bpe.encode(np.frombuffer(text.encode(), np.uint8)).tolist()
        assert theirs == ours
    assert len(pieces) == len(TEXTS)
