"""Conversations as tokens, in windows: only their answers are learned.

A window has as many tokens as the model's context, and is padded at its end. A longer conversation
is cut. A window has as many conversations as fit. The first token of each says that it begins
there, so that none sees another one. They are packed by best fit, longest first: each comes into
the window that has least room left for it, the earliest of several, or into a new one.

Rows have `messages`, or `conversations` with ShareGPT's names, of which the assistant's are
learned, or a `prompt` and a `completion`, texts or messages both, of which the completion is. Tool
calls and a row's `tools` are what the template makes of them. All parts of a content are texts.

What an answer is follows from the tokenizer's template: all that it writes between what it asks for
an answer with and what follows the answer, so the end of the answer is learned, too.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import numpy as np

from model_zoo.data import Tokens
from model_zoo.specs.tokens import BEGINS, NOT_LEARNED, token_dtype
from model_zoo.tokenizers.bpe import Bpe
from model_zoo.tokenizers.chat import BadTemplate, ChatTemplate, Message

_ASSISTANT = "assistant"
_SHARE_GPT = {"human": "user", "gpt": _ASSISTANT, "chatgpt": _ASSISTANT, "observation": "tool"}
_SHARE_GPT |= {role: role for role in ("system", "user", _ASSISTANT, "tool")}
_TALKS = ("messages", "conversations")
_DTYPE = token_dtype(256, masked=True)


class NoConversation(ValueError):
    """A row is no conversation that can be learned from; the message says why."""


@dataclass(frozen=True)
class Conversation:
    """A text, the places of its answers in it, and whether the token for its end is to follow."""

    text: str
    answers: tuple[tuple[int, int], ...]
    """First character of each, and the one after its last."""
    ends: bool = False


@dataclass(frozen=True)
class Encoded:
    """The tokens of a conversation, no more than the context has, with the bits of `specs.tokens`.

    Attributes:
        learned: tokens that are learned; none: the answers lie beyond the window.
        cut: whether the conversation goes on.
    """

    tokens: Tokens
    learned: int
    cut: bool


class Reader:
    """Makes conversations of rows, and windows of conversations.

    Args:
        tokenizer: None: tokens are bytes, and rows with messages are refused.
        context: tokens of a window.

    Raises:
        BadTemplate: the tokenizer's template cannot be used.
    """

    def __init__(self, tokenizer: Bpe | None, context: int) -> None:
        self._tokenizer, self._context = tokenizer, context
        chat = tokenizer.chat if tokenizer else None
        self._template = ChatTemplate(chat) if chat else None
        self._special = tokenizer.special_words if tokenizer else frozenset()
        end = tokenizer.end_of_text if tokenizer else ord("\n")
        self._ends = [] if end is None else [end]
        self.padding = (end or 0) | NOT_LEARNED

    def conversation(self, row: Any) -> Conversation:
        """Return the conversation of a row.

        Raises:
            NoConversation: it has none, or none with an answer.
        """
        if not isinstance(row, dict):
            raise NoConversation("is no JSON object")
        for name in _TALKS:
            if name in row:
                return self._talked(self._messages(row[name], name), 0, _tools(row))
        prompt, completion = row.get("prompt"), row.get("completion")
        if isinstance(prompt, str) and isinstance(completion, str):
            if not completion:
                raise NoConversation("has an empty completion: there is no answer to learn")
            self._check_words(prompt + completion)
            text = prompt + completion
            return Conversation(text, ((len(prompt), len(text)),), ends=True)
        if isinstance(prompt, list) and isinstance(completion, list):
            before = self._messages(prompt, "prompt")
            after = self._messages(completion, "completion")
            return self._talked(before + after, len(before), _tools(row))
        raise NoConversation(
            'has neither "messages" or "conversations" nor a "prompt" and a "completion"'
        )

    def encoded(self, found: Sequence[Conversation]) -> Iterator[Encoded]:
        """Return the tokens of each conversation."""
        for one, (tokens, starts) in zip(found, self._encoded(found), strict=True):
            learned = np.zeros(len(tokens), dtype=bool)
            for first, end in one.answers:
                learned |= (starts >= first) & (starts < end)
            if one.ends:
                tokens = np.concatenate([tokens, np.array(self._ends, dtype=tokens.dtype)])
                learned = np.concatenate([learned, np.ones(len(self._ends), dtype=bool)])
            yield self._marked(tokens, learned)

    def windows(self, found: Sequence[Encoded]) -> list[Tokens]:
        """Return the windows of conversations."""
        lengths = [len(one.tokens) for one in found]
        return [
            self._window([found[n] for n in inside]) for inside in fitted(lengths, self._context)
        ]

    def _marked(self, tokens: Tokens, learned: np.ndarray[Any, Any]) -> Encoded:
        size = min(len(tokens), self._context)
        counts = learned[:size].copy()
        counts[:1] = False  # the first token is the target of what lies before it
        made = tokens[:size].astype(_DTYPE)
        made[~counts] |= NOT_LEARNED
        made[:1] |= BEGINS
        return Encoded(made, int(counts.sum()), len(tokens) > size)

    def _window(self, found: Sequence[Encoded]) -> Tokens:
        made = np.full(self._context, self.padding, dtype=_DTYPE)
        together = np.concatenate([one.tokens for one in found])
        made[: len(together)] = together
        return made

    def _encoded(self, found: Iterable[Conversation]) -> Iterator[tuple[Tokens, Any]]:
        texts = [one.text for one in found]
        if self._tokenizer is not None:
            yield from self._tokenizer.encode_marked(texts)
            return
        for text in texts:
            letters = [letter.encode() for letter in text]
            starts = np.repeat(np.arange(len(letters)), [len(letter) for letter in letters])
            yield np.frombuffer(text.encode(), dtype=np.uint8), starts

    # --- messages --------------------------------------------------------------------------------

    def _messages(self, found: Any, where: str) -> list[Message]:
        if not isinstance(found, list) or not found:
            raise NoConversation(f'has no messages in "{where}"')
        return [_message(one, number) for number, one in enumerate(found, start=1)]

    def _check_words(self, text: str) -> None:
        """A text must not forge the end of a message."""
        for word in self._special:
            if word in text:
                raise NoConversation(f"has {word} in its text, which stands for a special token")

    def _talked(self, messages: list[Message], first: int, tools: list[Any] | None) -> Conversation:
        """Return a conversation whose assistant's messages are learned from a number on."""
        if self._template is None:
            raise NoConversation(
                "has messages, and the tokenizer has no chat template: take a folder with "
                "tokenizer.json and tokenizer_config.json or chat_template.jinja as --tokenizer"
            )
        numbered = enumerate(messages)
        answered = [n for n, m in numbered if n >= first and m["role"] == _ASSISTANT]
        if not any(_says_something(messages[number]) for number in answered):
            raise NoConversation("has no answer: no message of the assistant with a text")
        for words in _texts([messages, tools]):
            self._check_words(words)
        render = partial(self._template.render, tools=tools)
        try:
            text = render(messages)
            answers = tuple(_answer(render, text, messages, number) for number in answered)
        except BadTemplate as error:
            raise NoConversation(f"has messages, and {error}") from error
        return Conversation(text, answers)


def _tools(row: dict[str, Any]) -> list[Any] | None:
    """Return the tools of a row, which some files write as JSON within JSON."""
    found = row.get("tools")
    try:
        found = msgspec.json.decode(found) if isinstance(found, str) and found else found
    except (msgspec.MsgspecError, RecursionError) as error:
        raise NoConversation(f'has "tools" that are not JSON: {error}') from error
    if found and not isinstance(found, list):
        raise NoConversation('has "tools" that are no list')
    return found or None


def _message(found: Any, number: int) -> Message:
    """Return a message as templates read it, without what is null."""
    kept = {n: v for n, v in found.items() if v is not None} if isinstance(found, dict) else {}
    role, content = kept.pop("role", None), kept.pop("content", None)
    if role is None and isinstance(sender := kept.pop("from", None), str):
        role, content = _SHARE_GPT.get(sender), kept.pop("value", None)
        if role is None:
            raise NoConversation(f"has a message {number} from {sender[:40]!r}, which has no role")
    if content is None and kept.get("tool_calls"):
        content = ""
    if isinstance(content, list):
        content = _joined(content, number)
    if not isinstance(role, str) or not isinstance(content, str):
        words = "without a role and a content that is text"
        raise NoConversation(f"has a message {number} {words}")
    return kept | {"role": role, "content": content}


def _joined(parts: list[Any], number: int) -> str:
    found = (part.get("text") if isinstance(part, dict) else part for part in parts)
    texts = [text for text in found if isinstance(text, str)]
    if len(texts) < len(parts):
        raise NoConversation(f"has a message {number} with a part that is no text")
    return "".join(texts)


def _says_something(message: Message) -> bool:
    return bool(message["content"].strip() or message.get("tool_calls"))


def _texts(value: Any) -> Iterator[str]:
    """Return all texts within a value, names of fields as well."""
    left = [value]
    while left:
        one = left.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, dict):
            left += [*one.keys(), *one.values()]
        elif isinstance(one, list):
            left += one


def _answer(
    render: Callable[..., str], text: str, messages: list[Message], number: int
) -> tuple[int, int]:
    """Return where the answer of that number is in the text of all messages."""
    before = render(messages[:number], begin_answer=True)
    through = render(messages[: number + 1])
    if text.startswith(before):
        if text.startswith(through):
            return len(before), len(through)
        # Some templates write an answer otherwise where another message follows it.
        content = messages[number]["content"].strip()
        at, place = text.find(content, len(before)), through.rfind(content)
        if content and at >= 0 and place >= 0:
            end = at + len(through) - place
            if text[at:end] == through[place:]:
                return len(before), end
    raise NoConversation(
        f"has an answer, its message {number + 1}, whose place in the text of the chat "
        "template cannot be told"
    )


def fitted(lengths: Sequence[int], context: int) -> list[list[int]]:
    """Return which conversations each window has, by their numbers.

    Args:
        lengths: of the conversations, in tokens, from 1 to ``context``.
        context: tokens of a window.
    """
    windows: list[list[int]] = []
    rooms: list[tuple[int, int]] = []  # room that is left, and number of the window
    for number in sorted(range(len(lengths)), key=lambda n: -lengths[n]):
        at = bisect_left(rooms, (lengths[number], 0))
        if at == len(rooms):
            windows.append([])
            room, window = context, len(windows) - 1
        else:
            room, window = rooms.pop(at)
        windows[window].append(number)
        insort(rooms, (room - lengths[number], window))
    return windows
