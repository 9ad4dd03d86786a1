"""``volunteer eval``: the loss of a text is torch's, and lm_eval is run with the right words."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from client.cli.commands.create import write_swarm_file
from client.cli.models.harness import Score, command, find_harness, run
from client.errors import ExitCode, UserError
from model_zoo.data import DataError
from model_zoo.specs.model import ModelSpec
from model_zoo.text_loss import text_loss
from model_zoo.tokenizers.bpe import Bpe, byte_tokenizer, train
from model_zoo.whole import build_whole
from protocol.invite import SwarmFile
from tests.support.cli_process import Within
from tests.support.saved_swarms import little_swarm, write_checkpoints

HARNESS = os.environ.get("TEST_LM_EVAL_PYTHON", "")
"""An interpreter with lm_eval; its test needs no network."""
SPEC = ModelSpec("llama", 2, 32, 2, 2, 48, context=16)
WORDS = "the quick brown fox, über «40» lazy dogs\n"


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(WORDS * 40)
    return path


@pytest.fixture
def source(text: Path, tmp_path: Path) -> list[str]:
    swarm: SwarmFile = little_swarm(text)
    write_checkpoints(swarm, tmp_path / "checkpoints", 5, [0, 1])
    write_swarm_file(tmp_path / "little.swarm", swarm)
    return [
        "--swarm",
        str(tmp_path / "little.swarm"),
        "--checkpoint",
        str(tmp_path / "checkpoints"),
    ]


@pytest.mark.parametrize("vocab", [None, 300])
def test_every_token_but_the_first_is_predicted_once(tmp_path: Path, vocab: int | None) -> None:
    path = tmp_path / "a.txt"
    path.write_text(WORDS * 7)
    tokenizer = train([WORDS], vocab) if vocab else None
    size = tokenizer.vocab if tokenizer else 256
    model = build_whole(ModelSpec("llama", 2, 32, 2, 2, 48, context=16, vocab=size), seed=1)
    data = np.frombuffer(path.read_bytes(), np.uint8)
    tokens = (tokenizer.encode(data) if tokenizer else data).astype(np.int64)
    if tokenizer:
        assert tokenizer.end_of_text is not None
        tokens = np.append(tokens, tokenizer.end_of_text)
    expected = 0.0
    for at in range(1, len(tokens)):
        begin = (at - 1) // 16 * 16
        with torch.no_grad():
            logits = model(torch.from_numpy(tokens[None, begin:at]))[0, -1]
        expected += F.cross_entropy(logits, torch.tensor(tokens[at])).item()
    found = text_loss(model, path, tokenizer, 16)
    assert found.tokens == len(tokens) - 1
    first = len(tokenizer.decode(int(tokens[0]))) if tokenizer else 1
    assert found.size_bytes == len(data) - first
    assert found.nats == pytest.approx(expected, rel=1e-5)
    assert found.perplexity == pytest.approx(np.exp(expected / found.tokens), rel=1e-4)
    assert found.bits_per_byte == pytest.approx(expected / np.log(2) / found.size_bytes, rel=1e-5)


def test_a_text_of_one_token_has_nothing_to_predict(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n")
    with pytest.raises(DataError, match="1 tokens: there is nothing to predict"):
        text_loss(build_whole(SPEC, 1), tmp_path / "a.txt", None, 16)


def test_bytes_have_a_tokenizer_file() -> None:
    tokenizer: Bpe = byte_tokenizer()
    data = np.frombuffer("a b\n\n  «ü» it's 42".encode(), np.uint8)
    assert tokenizer.encode(data).tolist() == data.tolist()
    assert [tokenizer.decode(token) for token in range(256)] == [bytes([n]) for n in range(256)]


def test_a_text_on_the_command_line(within: Within, source: list[str], text: Path) -> None:
    done = within("eval", "--text", str(text), *source, "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["tokens"] == len(text.read_bytes()) - 1
    assert 5 < answer["loss"] < 6  # it is not trained
    assert answer["bits_per_byte"] == pytest.approx(answer["loss"] / np.log(2))
    shown = within("eval", "--text", str(text), *source)
    assert f"bits per byte  {answer['bits_per_byte']:.4f}" in shown.stdout


@pytest.mark.parametrize(
    ("arguments", "words", "code"),
    [
        ((), "give one of --text and --tasks", ExitCode.USAGE),
        (("--text", "a", "--tasks", "b"), "give one of", ExitCode.USAGE),
        (("--text", "a", "--limit", "3"), "are for --tasks", ExitCode.USAGE),
        (("--text", "a", "--device", "cuda:99"), "has no device 'cuda:99'", ExitCode.USAGE),
        (("--text", "a", "--device", "gpu"), "device 'gpu'", ExitCode.USAGE),
        (("--tasks", " ,"), "names no task", ExitCode.USAGE),
        (("--text", "nowhere.txt"), "nowhere.txt does not exist", ExitCode.CONFIG),
        (("--tasks", "arc", "--python", "nowhere"), "cannot run nowhere", ExitCode.RUNTIME),
    ],
)
def test_bad_input_has_words(
    within: Within, source: list[str], arguments: tuple[str, ...], words: str, code: ExitCode
) -> None:
    done = within("eval", *arguments, *source)
    assert done.returncode == code, done.stderr
    assert words in done.stderr


def program(path: Path, words: str) -> Path:
    """A program that stands for an interpreter."""
    path.write_text(f"#!{sys.executable}\n{words}\n")
    path.chmod(0o755)
    return path


def test_what_to_install_is_said(tmp_path: Path) -> None:
    bare = program(tmp_path / "python", "raise SystemExit('No module named lm_eval')")
    with pytest.raises(UserError, match="has no lm_eval: No module named lm_eval") as caught:
        find_harness(bare)
    assert 'pip install "lm_eval[hf]"' in str(caught.value.next_step)
    assert caught.value.exit_code == ExitCode.CONFIG


def test_the_command_line_and_its_results(tmp_path: Path) -> None:
    model, out = tmp_path / "model", tmp_path / "out"
    line = command("python", model, ["a", "b"], out, prefix=10, limit=5, include=tmp_path)
    assert line[:5] == ["python", "-m", "lm_eval", "--model", "hf"]
    named = dict(zip(line[3::2], line[4::2], strict=True))
    assert named["--model_args"] == f"pretrained={model},dtype=float32,prefix_token_id=10"
    assert (named["--tasks"], named["--limit"]) == ("a,b", "5")
    assert (named["--include_path"], named["--output_path"]) == (str(tmp_path), str(out))
    results = {"a": {"alias": "a", "acc,none": 0.5, "acc_stderr,none": 0.1, "ppl,none": 3, "n": 4}}
    writes = f"""import json, pathlib
folder = pathlib.Path({str(out)!r}) / "model"
folder.mkdir(parents=True)
(folder / "results_1.json").write_text(json.dumps({{"results": {results!r}}}))"""
    fine = program(tmp_path / "fine", writes)
    assert run([str(fine)], out) == [Score("a", "acc", 0.5, 0.1), Score("a", "ppl", 3.0, None)]
    with pytest.raises(UserError, match="failed with exit code 3"):
        run([str(program(tmp_path / "bad", "raise SystemExit(3)"))], out)


@pytest.mark.skipif(not HARNESS, reason="TEST_LM_EVAL_PYTHON names no interpreter with lm_eval")
def test_lm_eval_measures_a_model_whose_tokens_are_bytes(
    within: Within, source: list[str], tmp_path: Path
) -> None:
    rows = [{"question": f"{n} and 1 are", "choices": ["many", "few"], "gold": 1} for n in range(8)]
    data = tmp_path / "own.jsonl"
    data.write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "own.yaml").write_text(
        f"task: own\ndataset_path: json\ndataset_kwargs:\n  data_files: {{test: {data}}}\n"
        "test_split: test\noutput_type: multiple_choice\ndoc_to_text: '{{question}}'\n"
        "doc_to_choice: choices\ndoc_to_target: gold\nmetric_list:\n  - metric: acc\n"
    )
    told = ["--tasks", "own", "--python", HARNESS, "--include", str(tmp_path), "--limit", "4"]
    done = within("eval", *told, *source, "--json")
    assert done.returncode == 0, done.stderr
    (score,) = json.loads(done.stdout)["scores"]
    assert (score["task"], score["metric"]) == ("own", "acc")
    assert score["value"] in (0.0, 0.25, 0.5, 0.75, 1.0)
