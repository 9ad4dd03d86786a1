"""A conversation with a model, which transformers generates. Imports transformers.

A model whose tokenizer has a chat template is talked to in messages. Any other one continues a
text: what was typed and what it wrote, one after the other. What does not fit in the model's
context is forgotten, the oldest first.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jinja2 import TemplateError
from transformers import AutoModelForCausalLM, AutoTokenizer, TextStreamer
from transformers.utils import logging

from client.cli.terminal.output import printable
from client.errors import ExitCode, UserError


class CannotAnswer(ValueError):
    """What was said cannot be given to the model; says why. The conversation is as it was."""


@dataclass(frozen=True)
class Drawing:
    """How an answer is drawn."""

    max_tokens: int
    temperature: float
    """0 takes the likeliest token each time."""
    top_k: int
    top_p: float
    seed: int

    def settings(self) -> dict[str, Any]:
        """Return them as transformers names them."""
        if self.temperature == 0:
            return {"do_sample": False}
        return {
            "do_sample": True,
            "temperature": self.temperature,
            "top_k": self.top_k,
            "top_p": self.top_p,
        }


class _Printer(TextStreamer):  # type: ignore[misc]
    """Prints an answer as it is drawn, and keeps it; a model may have learned to move cursors."""

    said = ""

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        """Print what is complete."""
        self.said += text
        print(printable(text), end="", flush=True)


class Talk:
    """See the module's docstring.

    Args:
        folder: of ``volunteer export``.
        drawing: how answers are drawn.
        system: said before the first message; empty: nothing.

    Raises:
        UserError: the folder has no model that transformers loads.
    """

    def __init__(self, folder: Path, drawing: Drawing, system: str = "") -> None:
        logging.set_verbosity_error()  # advice for developers
        logging.disable_progress_bar()
        try:
            if not (folder / "config.json").is_file():
                raise OSError("it has no config.json")
            self._tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
            self._model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
        except (OSError, ValueError) as error:
            problem = f"{folder} has no model that transformers loads: {error}"
            words = "make one: volunteer export --out FOLDER (of adapters: --merged)"
            raise UserError(problem, words, ExitCode.CONFIG) from error
        self._context = int(self._model.config.max_position_embeddings)
        self._drawing, self._system = drawing, system
        self._messages: list[dict[str, str]] = []
        self._text = ""
        torch.manual_seed(drawing.seed)
        self.reset()

    @property
    def in_messages(self) -> bool:
        """Whether the model is talked to by a chat template, and does not continue a text."""
        return bool(self._tokenizer.chat_template)

    @property
    def _room(self) -> int:
        """Tokens that are left for an answer: at most half of the context."""
        return min(self._drawing.max_tokens, self._context // 2)

    def reset(self) -> None:
        """Forget all that was said, but for what the conversation began with."""
        self._messages = [{"role": "system", "content": self._system}] if self._system else []
        self._text = self._system

    def answer(self, words: str) -> None:
        """Print the answer to what somebody says, as it is drawn.

        An answer that is interrupted stays in the conversation as far as it was shown.

        Raises:
            CannotAnswer: it is too long, or the template refuses it.
        """
        printer = _Printer(self._tokenizer, skip_prompt=True, skip_special_tokens=True)
        if self.in_messages:
            asked, tokens = self._fitting([*self._messages, {"role": "user", "content": words}])
        else:
            gap = "\n" if self._text and not self._text.endswith("\n") else ""
            self._text += gap + words
            encoded = self._tokenizer(self._text, add_special_tokens=False, return_tensors="pt")
            tokens = encoded.input_ids[:, self._room - self._context :]
        try:
            self._model.generate(
                tokens,
                attention_mask=torch.ones_like(tokens),
                max_new_tokens=self._room,
                max_length=None,
                streamer=printer,
                pad_token_id=self._tokenizer.eos_token_id,
                **self._drawing.settings(),
            )
        finally:
            if self.in_messages:
                self._messages = [*asked, {"role": "assistant", "content": printer.said}]
            else:
                self._text += printer.said

    def _fitting(self, messages: list[dict[str, str]]) -> tuple[list[dict[str, str]], torch.Tensor]:
        """Return the messages that fit beside an answer, and their tokens."""
        first = int(bool(self._system))
        while True:
            try:
                tokens = self._tokenizer.apply_chat_template(
                    messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
                ).input_ids
            except TemplateError as error:
                raise CannotAnswer(f"the chat template refuses it: {error}") from error
            if tokens.shape[1] <= self._context - self._room:
                return messages, tokens
            if len(messages) <= first + 1:
                words = f"it has {tokens.shape[1]} tokens, and the model's context is"
                raise CannotAnswer(f"{words} {self._context}")
            messages = messages[:first] + messages[first + 2 :]  # a question and its answer
