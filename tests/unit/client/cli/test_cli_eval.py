"""``volunteer eval``: the loss of a text is torch's."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from client.cli.commands.create import write_swarm_file
from client.errors import ExitCode
from model_zoo.data import DataError
from model_zoo.specs.model import ModelSpec
from model_zoo.text_loss import TextLoss, text_loss
from model_zoo.tokenizers.bpe import Bpe, byte_tokenizer, train
from model_zoo.whole import build_whole
from protocol.invite import SwarmFile
from tests.support.cli_process import Within
from tests.support.saved_swarms import little_swarm, write_checkpoints

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


def test_the_model_is_computed_on_the_chosen_device(
    within: Within, source: list[str], text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen, used = list[str](), list[torch.device]()

    def select(name: str) -> torch.device:
        chosen.append(name)
        return torch.device("meta")

    def measure(model: nn.Module, *_: object) -> TextLoss:
        used.extend(parameter.device for parameter in model.parameters())
        return TextLoss(tokens=1, size_bytes=1, nats=1.0)

    monkeypatch.setattr("client.compute.device.select_device", select)
    monkeypatch.setattr("model_zoo.text_loss.text_loss", measure)
    done = within("eval", "--text", str(text), *source, "--device", "cuda:0")
    assert done.returncode == 0, done.stderr
    assert chosen == ["cuda:0"]
    assert {device.type for device in used} == {"meta"}


@pytest.mark.parametrize(
    ("arguments", "words", "code"),
    [
        ((), "--text", ExitCode.USAGE),
        (("--text", "a", "--device", "cuda:99"), "has no device 'cuda:99'", ExitCode.USAGE),
        (("--text", "a", "--device", "gpu"), "device 'gpu'", ExitCode.USAGE),
        (("--text", "nowhere.txt"), "nowhere.txt does not exist", ExitCode.CONFIG),
    ],
)
def test_bad_input_has_words(
    within: Within, source: list[str], arguments: tuple[str, ...], words: str, code: ExitCode
) -> None:
    done = within("eval", *arguments, *source)
    assert done.returncode == code, done.stderr
    assert words in done.stderr
