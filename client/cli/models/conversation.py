"""A conversation with a model: its messages, and what the model is given of them.

A model whose tokenizer has a chat template is talked to in messages. Any other one continues a
text: what was typed and what it wrote, one after the other. What does not fit in the model's
context is forgotten, the oldest first. Knows no terminal.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator

import torch

from model_zoo.sample import Sampling, draw, encoded, known_tokens, texts
from model_zoo.stages import Stage
from model_zoo.tokenizers.bpe import Bpe, end_token
from model_zoo.tokenizers.chat import BadTemplate, ChatTemplate
from model_zoo.tokenizers.tokenizer import load_tokenizer

MAX_CHARACTERS_PER_TOKEN = 16
"""What is further back than the context times this is not even kept."""
END, LENGTH, STOPPED = "end", "length", "stopped"
"""How an answer ended: the model ended it, it reached a limit, or somebody stopped it."""


class CannotAnswer(ValueError):
    """What was said cannot be given to the model; says why. The conversation is as it was."""


class Conversation:
    """See the module's docstring.

    Args:
        model: a whole model, on the CPU.
        tokenizer: what made its tokens, or its name in the zoo.
        sampling: how tokens are chosen.
        max_tokens: longest answer.
        seed: the same seed and the same words give the same answers on the same machine.
        system: said before the first message; empty: nothing.

    Attributes:
        ended: how the last answer ended.
        tokens: of the last answer.
        seconds: that it took.

    Raises:
        BadTemplate: the tokenizer's template cannot be used.
    """

    def __init__(
        self,
        model: Stage,
        tokenizer: str | Bpe,
        sampling: Sampling,
        *,
        max_tokens: int,
        seed: int,
        system: str = "",
    ) -> None:
        self._model, self._sampling, self._max_tokens = model, sampling, max_tokens
        self._words = load_tokenizer(tokenizer) if isinstance(tokenizer, str) else tokenizer
        self._bpe = None if isinstance(tokenizer, str) else tokenizer
        self._known = known_tokens(tokenizer)
        chat = self._bpe.chat if self._bpe else None
        self._template = ChatTemplate(chat) if chat else None
        self._ends = self._end_tokens()
        self._generator = torch.Generator().manual_seed(seed)
        self._system = system
        self._messages: list[dict[str, str]] = []
        self._text = ""
        self.ended, self.tokens, self.seconds = END, 0, 0.0
        self.reset()

    @property
    def in_messages(self) -> bool:
        """Whether the model is talked to by a chat template, and does not continue a text."""
        return self._template is not None

    def reset(self) -> None:
        """Forget all that was said, but for what the conversation began with."""
        self._messages = [{"role": "system", "content": self._system}] if self._system else []
        self._text = self._system

    def answer(self, words: str) -> Generator[str, None, None]:
        """Yield the answer to what somebody says, as it is drawn.

        An iterator that is closed, or interrupted, before its end leaves in the conversation what
        it had yielded.

        Raises:
            CannotAnswer: it is empty or too long, or the template refuses it.
        """
        if not words:
            raise CannotAnswer("there is nothing to answer")
        if self._template is None:
            return self._continued(words)
        return self._replied(self._template, words)

    def _continued(self, words: str) -> Generator[str, None, None]:
        gap = "\n" if self._text and not self._text.endswith("\n") else ""
        longest = MAX_CHARACTERS_PER_TOKEN * self._model.spec.context
        before = (self._text + gap + words)[-longest:]
        for text in self._drawn(self._tokens(before), self._max_tokens):
            self._text = before = before + text
            yield text
        self._text = before

    def _replied(self, template: ChatTemplate, words: str) -> Generator[str, None, None]:
        if self._bpe and any(word in words for word in self._bpe.special_words):
            raise CannotAnswer("it has a word that is a special token of this model")
        asked = [*self._messages, {"role": "user", "content": words}]
        asked, tokens = self._fitting(template, asked)
        room = min(self._max_tokens, self._model.spec.context - len(tokens))
        said = ""
        for text in self._drawn(tokens, room):
            said += text
            self._messages = [*asked, {"role": "assistant", "content": said}]
            yield text
        self._messages = [*asked, {"role": "assistant", "content": said}]

    def _fitting(
        self, template: ChatTemplate, messages: list[dict[str, str]]
    ) -> tuple[list[dict[str, str]], list[int]]:
        """Return the messages that fit, and their tokens: half of the context is for the answer,
        or as much as an answer may have."""
        context, first = self._model.spec.context, int(bool(self._system))
        room = min(self._max_tokens, context // 2)
        while True:
            try:
                tokens = self._tokens(template.render(messages, begin_answer=True), marked=True)
            except BadTemplate as error:
                raise CannotAnswer(str(error)) from error
            if len(tokens) <= context - room:
                return messages, tokens
            if len(messages) <= first + 1:
                break
            messages = messages[:first] + messages[first + 2 :]  # a question and its answer
        if len(tokens) < context:
            return messages, tokens
        raise CannotAnswer(f"it has {len(tokens)} tokens, and the model's context is {context}")

    def _tokens(self, text: str, *, marked: bool = False) -> list[int]:
        if marked and self._bpe:
            found: list[int] = next(self._bpe.encode_marked([text]))[0].tolist()
        else:
            found = encoded(self._words, text)
        if not found:
            raise CannotAnswer("the chat template makes nothing of it")
        if max(found) >= self._model.spec.vocab:
            raise CannotAnswer(
                f"it has tokens beyond the model's vocabulary of {self._model.spec.vocab}"
            )
        return found

    def _drawn(self, tokens: list[int], length: int) -> Iterator[str]:
        """Yield the text that follows, up to a token that ends it."""
        self.ended, self.tokens, self.seconds = STOPPED, 0, 0.0
        began = time.monotonic()

        def counted() -> Iterator[int]:
            drawn = draw(self._model, tokens, length, self._sampling, self._generator, self._known)
            for token in drawn:
                self.tokens, self.seconds = self.tokens + 1, time.monotonic() - began
                if token in self._ends:
                    self.ended = END
                    return
                yield token
            self.ended = LENGTH

        yield from texts(self._words, counted())

    def _end_tokens(self) -> frozenset[int]:
        """The tokens that end an answer; in messages, every special one."""
        if self._bpe is None:
            return frozenset()
        ends = {end_token(self._bpe), self._bpe.end_of_text}
        if self._template is not None:
            ends |= {self._bpe.token_of(word) for word in self._bpe.special_words}
        return frozenset(token for token in ends if token is not None)
