"""Chat templates: how messages become the text that a model is talked to with.

A template is a program in Jinja. It may come from strangers, so it runs in Jinja's sandbox, with
nothing but the messages and the two words of its tokenizer. There is no clock: templates that ask
for the date by `strftime_now` only where it is defined write the one that they fall back on.
"""

import json
from codecs import BOM_UTF8
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from model_zoo.specs.packages import load
from model_zoo.specs.tokens import MAX_TEMPLATE_CHARS, ChatFormat

CONFIG = "tokenizer_config.json"
TEMPLATE = "chat_template.jinja"
_MAX_CONFIG_BYTES = 16 << 20
Message = Mapping[str, Any]


class BadTemplate(ValueError):
    """A template cannot be used, or refuses messages; the message says why."""


class ChatTemplate:
    """A template that is ready to be used.

    Raises:
        BadTemplate: it is no Jinja.
        MissingPackage: the library is missing.
    """

    def __init__(self, chat: ChatFormat) -> None:
        self._words = {"bos_token": chat.bos, "eos_token": chat.eos}
        self._errors, environment = _environment()
        try:
            self._template = environment.from_string(chat.template)
        except (self._errors, RecursionError) as error:
            raise BadTemplate(f"the chat template is no Jinja: {error}") from error

    def render(
        self,
        messages: Sequence[Message],
        *,
        begin_answer: bool = False,
        tools: Sequence[Any] | None = None,
    ) -> str:
        """Return the text of messages.

        Args:
            messages: with roles and contents.
            begin_answer: whether what an answer is asked for with follows them.
            tools: that the assistant may call, as the template has them.

        Raises:
            BadTemplate: the template refuses the messages.
        """
        try:
            text: str = self._template.render(
                messages=messages, add_generation_prompt=begin_answer, tools=tools, **self._words
            )
        except (self._errors, ArithmeticError, LookupError, OSError) as error:
            raise BadTemplate(f"the chat template refuses them: {error}") from error
        except (TypeError, ValueError, RecursionError) as error:
            raise BadTemplate(f"the chat template fails on them: {error}") from error
        return text


def chat_format(folder: Path) -> ChatFormat | None:
    """Return what a tokenizer's folder says of conversations; None: nothing.

    Raises:
        BadTemplate: its files are damaged or too long.
    """
    config = _config(folder / CONFIG)
    template = _file(folder / TEMPLATE) or _named(config.get("chat_template"))
    if not template:
        return None
    if len(template) > MAX_TEMPLATE_CHARS:
        problem = f"the chat template in {folder} has {len(template)} characters"
        raise BadTemplate(f"{problem}; {MAX_TEMPLATE_CHARS} are supported")
    return ChatFormat(template, _word(config.get("bos_token")), _word(config.get("eos_token")))


def _config(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_CONFIG_BYTES).removeprefix(BOM_UTF8)
            return msgspec.json.decode(data, type=dict[str, Any])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadTemplate(f"cannot read {path}: {error}") from error


def _file(path: Path) -> str:
    try:
        with path.open(encoding="utf-8-sig") as file:
            return file.read(MAX_TEMPLATE_CHARS + 1)
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise BadTemplate(f"cannot read {path}: {error}") from error


def _named(found: Any) -> str:
    """Return the template of a configuration; of several, the one named default."""
    if isinstance(found, list):
        named = (one.get("template") for one in found if isinstance(one, dict))
        default = (
            one.get("template")
            for one in found
            if isinstance(one, dict) and one.get("name") == "default"
        )
        found = next(default, next(named, ""))
    return found if isinstance(found, str) else ""


def _word(found: Any) -> str:
    found = found.get("content") if isinstance(found, dict) else found
    return found[:256] if isinstance(found, str) else ""


def _environment() -> tuple[type[Exception], Any]:
    """Return the class of Jinja's errors, and a sandbox with what templates are written for."""
    jinja, sandbox = load("jinja2"), load("jinja2.sandbox")
    nodes, extensions = load("jinja2.nodes"), load("jinja2.ext")

    class Generation(extensions.Extension):  # type: ignore[misc, name-defined]
        """The tag around answers: what is in it is written as it is."""

        tags = frozenset({"generation"})

        def parse(self, parser: Any) -> Any:
            """Read the tag."""
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body).set_lineno(line)

    def refuse(words: object) -> NoReturn:
        raise jinja.TemplateError(str(words)[:200])

    def to_json(value: object, indent: int | None = None, **_: object) -> str:
        return json.dumps(value, ensure_ascii=False, indent=indent)

    made = sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, extensions.loopcontrols]
    )
    made.globals["raise_exception"] = refuse
    made.filters["tojson"] = to_json
    return jinja.TemplateError, made
