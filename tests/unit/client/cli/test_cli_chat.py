"""``volunteer chat``: what a model is given of a conversation, in a terminal and through pipes."""

from __future__ import annotations

import fcntl
import io
import os
import select
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from client.cli.commands import chat
from client.cli.commands.create import write_swarm_file
from client.errors import ExitCode, UserError
from model_zoo.export import export_hf
from model_zoo.sample import generate
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.tokens import ChatFormat
from model_zoo.stages import Stage
from model_zoo.tokenizers.bpe import Bpe, byte_tokenizer, train
from model_zoo.whole import build_whole
from tests.support.cli_process import REPOSITORY, Volunteer, Within
from tests.support.saved_swarms import little_swarm, write_checkpoints

pytest.importorskip("transformers", reason="needs the extra volunteer[hf]")
from client.cli.models.talk import CannotAnswer, Drawing, Talk

TEMPLATE = (
    "{% for m in messages %}{{ m['role'][0] }}:{{ m['content'] }}<|endoftext|>{% endfor %}"
    "{% if add_generation_prompt %}a:{% endif %}"
)


def drawing(max_tokens: int, temperature: float = 0.0, seed: int = 0) -> Drawing:
    return Drawing(max_tokens, temperature, top_k=40, top_p=1.0, seed=seed)


def build(vocab: int = 256, context: int = 64) -> Stage:
    return build_whole(ModelSpec("llama", 1, 16, 2, 2, 32, context=context, vocab=vocab), seed=5)


def exported(folder: Path, model: Stage, tokenizer: Bpe | None = None) -> Path:
    return export_hf(model.spec, model.state_dict(), folder, tokenizer or byte_tokenizer())


def worded(template: str = TEMPLATE) -> Bpe:
    words = train(["the quick brown fox jumps over the lazy dog. " * 9], 300)
    return Bpe(words.data, ChatFormat(template, eos="<|endoftext|>"))


def spied(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The tokens that the model is asked to continue, each time."""
    given: list[list[int]] = []
    asked = talk._model.generate

    def noted(tokens: torch.Tensor, **settings: Any) -> Any:
        given.append(tokens[0].tolist())
        return asked(tokens, **settings)

    monkeypatch.setattr(talk._model, "generate", noted)
    return given


class TestWithoutATemplate:
    def test_the_text_goes_on_and_on(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        talk = Talk(exported(tmp_path, build()), drawing(5), system="s ")
        given = spied(talk, monkeypatch)
        assert not talk.in_messages
        talk.answer("ab")
        assert capsys.readouterr().out == generate(build(), "s \nab", 5, temperature=0)
        talk.answer("cd")
        assert given[0] == list(b"s \nab")
        assert bytes(given[1][:7]).startswith(b"s \nab")
        assert bytes(given[1]).endswith(b"\ncd")
        talk.reset()
        talk.answer("x")
        assert given[2] == list(b"s \nx")

    def test_more_than_the_context_is_forgotten(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        talk = Talk(exported(tmp_path, build(context=16)), drawing(3))
        given = spied(talk, monkeypatch)
        talk.answer("a" * 5000)
        talk.answer("b" * 20)
        assert given == [list(b"a" * 13), list(b"b" * 13)]

    def test_an_interrupted_answer_stays_as_far_as_it_was_shown(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        talk = Talk(exported(tmp_path, build()), drawing(5))

        def interrupted(tokens: torch.Tensor, streamer: Any, **settings: Any) -> None:
            streamer.on_finalized_text("zz")
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(talk._model, "generate", interrupted)
            with pytest.raises(KeyboardInterrupt):
                talk.answer("a")
        given = spied(talk, monkeypatch)
        talk.answer("b")
        assert bytes(given[0]) == b"azz\nb"

    def test_the_seed_fixes_the_answers(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        exported(tmp_path, build())

        def said(seed: int) -> str:
            talk = Talk(tmp_path, drawing(8, 1.0, seed))
            talk.answer("a")
            talk.answer("a")
            return capsys.readouterr().out

        assert said(1) == said(1) != said(2)


class TestWithATemplate:
    def test_messages_are_rendered_as_in_training(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        bpe = worded()
        talk = Talk(exported(tmp_path, build(bpe.vocab, 128), bpe), drawing(2), "be kind")
        given = spied(talk, monkeypatch)
        assert talk.in_messages
        talk.answer("the dog")
        talk.answer("and")
        first = "s:be kind<|endoftext|>u:the dog<|endoftext|>a:"
        assert given[0] == next(bpe.encode_marked([first]))[0].tolist()
        assert given[1][: len(given[0])] == given[0]
        talk.reset()
        talk.answer("x")
        text = "s:be kind<|endoftext|>u:x<|endoftext|>a:"
        assert given[2] == next(bpe.encode_marked([text]))[0].tolist()

    def test_the_oldest_questions_are_forgotten_first(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        bpe = worded()
        talk = Talk(exported(tmp_path, build(bpe.vocab), bpe), drawing(4), "S")
        given = spied(talk, monkeypatch)
        for word in ("brown", "quick", "jumps", "lazy", "dog"):
            talk.answer(f"{word} !!!!!!!!!")
        last = b"".join(bpe.decode(token) for token in given[-1]).decode(errors="replace")
        assert last.startswith("s:S")
        assert "brown" not in last
        assert "dog !!!!!!!!!" in last
        assert all(len(tokens) <= 60 for tokens in given)

    def test_what_does_not_fit_is_refused_and_the_rest_stays(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        bpe = worded()
        talk = Talk(exported(tmp_path, build(bpe.vocab, 32), bpe), drawing(4))
        given = spied(talk, monkeypatch)
        with pytest.raises(CannotAnswer, match="the model's context is 32"):
            talk.answer("!" * 99)
        talk.answer("dog")
        assert given == [next(bpe.encode_marked(["u:dog<|endoftext|>a:"]))[0].tolist()]

    def test_a_template_that_refuses_says_why(self, tmp_path: Path) -> None:
        bpe = worded("{{ raise_exception('no system here') }}")
        talk = Talk(exported(tmp_path, build(bpe.vocab), bpe), drawing(4))
        with pytest.raises(CannotAnswer, match="no system here"):
            talk.answer("dog")


def test_a_folder_without_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no model that transformers loads") as caught:
        Talk(tmp_path, drawing(4))
    assert "volunteer export" in str(caught.value.next_step)


# --- the command ---------------------------------------------------------------------------------


@pytest.fixture
def told(tmp_path: Path) -> list[str]:
    (tmp_path / "text.txt").write_text("the quick brown fox\n" * 40)
    swarm = little_swarm(tmp_path / "text.txt")
    write_checkpoints(swarm, tmp_path / "checkpoints", 5, [0, 1])
    write_swarm_file(tmp_path / "x.swarm", swarm)
    return ["--swarm", str(tmp_path / "x.swarm"), "--checkpoint", str(tmp_path / "checkpoints")]


def typed(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))


def test_lines_of_stdin_are_answered_also_by_an_exported_model(
    within: Within, told: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ["--max-tokens", "4", "--temperature", "0"]
    lines = b"the \n\n/reset\nthe \n\xff\n/quit\nnot read\n"
    typed(monkeypatch, lines)
    done = within("chat", *told, *flags)
    assert done.returncode == 0, done.stderr
    assert "little, version 5 of 200" in done.stderr
    assert "no chat template: it continues your text" in done.stderr
    first, second, _ = done.stdout.splitlines()
    assert first == second != ""
    assert within("export", *told, "--out", str(tmp_path / "model")).returncode == 0
    typed(monkeypatch, lines)
    again = within("chat", "--model", str(tmp_path / "model"), *flags)
    assert again.stdout == done.stdout


def test_what_a_model_writes_moves_no_cursor(
    within: Within, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def hostile(_: object, tokens: torch.Tensor, streamer: Any, **settings: Any) -> None:
        for text in ("a\x1b[2J", "\x9b31m\r\u202eb"):
            streamer.on_finalized_text(text)

    monkeypatch.setattr("transformers.GenerationMixin.generate", hostile)
    typed(monkeypatch, b"x\n")
    assert within("chat", *told).stdout == "a\ufffd[2J\ufffd31m\ufffd\ufffdb\n"


def test_a_line_without_an_answer_does_not_end_the_others(
    within: Within, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(self: Talk, words: str) -> None:
        if words == "bad":
            raise CannotAnswer("too bad")
        print("fine", end="")

    monkeypatch.setattr(Talk, "answer", refuses)
    typed(monkeypatch, b"bad\ngood\n")
    done = within("chat", *told)
    assert (done.returncode, done.stdout) == (ExitCode.RUNTIME, "fine\n")
    assert "no answer: too bad" in done.stderr


def test_without_transformers_the_extra_is_named(
    within: Within, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat, "find_spec", lambda name: None)
    done = within("chat", *told)
    assert done.returncode == ExitCode.CONFIG
    assert 'pip install "volunteer[hf]"' in done.stderr


@pytest.mark.parametrize("flags", [["--temperature", "-1"], ["--top-k", "0"], ["--top-p", "1.5"]])
def test_wrong_settings_are_usage_errors(within: Within, told: list[str], flags: list[str]) -> None:
    done = within("chat", *told, *flags)
    assert done.returncode == ExitCode.USAGE
    assert flags[0] in done.stderr


def test_without_a_model_it_is_said_what_to_do(
    within: Within, told: list[str], tmp_path: Path
) -> None:
    done = within("chat", "--swarm", told[1], "--checkpoint", str(tmp_path / "empty"))
    assert done.returncode == ExitCode.TEMPORARY
    assert "wait for the next checkpoint" in done.stderr


def _as_in_a_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell's background jobs ignore it, tests too


class Terminal:
    """A program in a terminal of its own."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self._ours, theirs = os.openpty()
        self.process = subprocess.Popen(
            command,
            env={**environment, "TERM": "dumb"},
            cwd=REPOSITORY,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=_as_in_a_terminal,
        )
        os.close(theirs)
        self._seen = ""

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def until(self, words: str) -> str:
        """Read until the words are shown; return what was shown, with them."""
        deadline = time.monotonic() + 60
        while words not in self._seen:
            left = deadline - time.monotonic()
            ready, _, _ = select.select([self._ours], [], [], max(0.0, left))
            assert ready, f"{words!r} is not in {self._seen!r}"
            try:
                self._seen += os.read(self._ours, 4096).decode(errors="replace")
            except OSError:  # the program has ended
                pytest.fail(f"{words!r} is not in {self._seen!r}, and it has ended")
        shown, _, self._seen = self._seen.partition(words)
        return shown + words

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)


@pytest.mark.slow
def test_a_conversation_in_a_terminal(volunteer: Volunteer, told: list[str]) -> None:
    """Ctrl-C stops an answer and not the program; Ctrl-D ends it."""
    command = [sys.executable, "-m", "client.cli.main", "chat", *told, "--max-tokens", "8"]
    terminal = Terminal(command, volunteer.environment)
    try:
        assert "no chat template" in terminal.until("> ")
        terminal.type("\x03\r")  # a signal right before Python waits is seen with the next key
        terminal.until("Ctrl-C stops an answer\r\n")
        terminal.until("> ")
        terminal.type("/rest\r")
        terminal.until("/rest is no command")
        terminal.until("> ")
        terminal.type("the \r")
        terminal.until("the \r\n")
        terminal.until("> ")
        terminal.type("/reset\r")
        terminal.until("> ")
        terminal.type("\x04")
        assert terminal.process.wait(30) == 0
    finally:
        terminal.close()
