"""``volunteer chat``: a conversation with a swarm's newest complete model."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter, validators
from msgspec import Struct

from client.cli.reach.home import find_home
from client.cli.reach.target import find_swarm
from client.cli.terminal.output import human_rate, json_line, printable, say
from client.cli.terminal.parameters import AsJson
from client.errors import ExitCode, UserError

if TYPE_CHECKING:
    from client.cli.models.conversation import Conversation  # which imports torch

HELP = "/reset forgets what was said, /quit or Ctrl-D ends, Ctrl-C stops an answer"
IN_MESSAGES = "it is talked to by the chat template of its tokenizer"
IN_TEXT = (
    "its tokenizer has no chat template: it continues your text, as it learned to, and does not "
    "know of questions and answers"
)


class Answer(Struct, frozen=True, kw_only=True):
    """One line of ``volunteer chat --json``."""

    swarm: str
    version: int
    prompt: str
    text: str
    """The answer; empty where there is an error."""
    ended: str = ""
    """``end``: the model ended it; ``length``: it reached a limit."""
    tokens: int = 0
    seconds: float = 0.0
    error: str = ""
    """Why there is no answer."""
    schema_version: int = 1


def chat(
    *,
    swarm: str | None = None,
    checkpoint: tuple[Path, ...] = (),
    system: str = "",
    max_tokens: Annotated[int, Parameter(validator=validators.Number(gte=1))] = 256,
    temperature: float = 0.8,
    top_k: int | None = 40,
    top_p: float | None = None,
    seed: int = 0,
    json: AsJson = False,
) -> int:
    """Talk with the model a swarm has trained so far.

    Parameters
    ----------
    swarm
        Name, id, invite or .swarm file (default: the only swarm known here).
    checkpoint
        Folder with checkpoints; may be repeated (default: this volunteer's own, else the swarm's).
    system
        What the conversation begins with: how the model is to answer.
    max_tokens
        Longest answer; in many swarms a token is a byte.
    temperature
        0 takes the likeliest token each time; higher is more daring.
    top_k
        Draw from so many likeliest tokens only.
    top_p
        Draw from the likeliest tokens that together have this probability, such as 0.9.
    seed
        Same seed, same answers to the same words.
    """
    home = find_home()
    found = find_swarm(home, swarm)

    from client.cli.models.conversation import Conversation
    from client.cli.models.model_source import needed_model
    from client.cli.models.newest import needed_tokenizer, newest_model
    from model_zoo.sample import Sampling  # torch: when all else is in order
    from model_zoo.tokenizers.bpe import BadTokenizer
    from model_zoo.tokenizers.chat import BadTemplate

    try:
        sampling = Sampling(temperature, top_k, top_p)
    except ValueError as error:
        raise UserError(str(error), "see volunteer chat --help", ExitCode.USAGE) from error
    trained = newest_model(home, found, checkpoint)
    model, tokenizer = needed_model(trained), needed_tokenizer(trained)
    try:
        talk = Conversation(
            model, tokenizer, sampling, max_tokens=max_tokens, seed=seed, system=system
        )
        say(f"{trained.manifest.name}, version {trained.version} of {trained.steps}")
        say(IN_MESSAGES if talk.in_messages else IN_TEXT)
        if sys.stdin.isatty() and sys.stdout.isatty() and not json:
            return _with_a_person(talk)
        return _with_a_pipe(talk, trained.swarm, trained.version, as_json=json)
    except BadTemplate as error:
        words = "volunteer sample continues a text without a template"
        raise UserError(str(error), words, ExitCode.CONFIG) from error
    except BadTokenizer as error:
        words = 'pip install "volunteer[tokens]"'
        raise UserError(str(error), words, ExitCode.CONFIG) from error


def _with_a_person(talk: Conversation) -> int:
    """Answer in a terminal until somebody ends it."""
    from client.cli.models.conversation import STOPPED, CannotAnswer

    say(HELP)
    with suppress(ImportError):
        import readline  # noqa: F401  (lines can be edited and called back)
    for line in _typed():
        if line.startswith("/"):
            if line == "/quit":
                break
            if line == "/reset":
                talk.reset()
            say("forgotten" if line == "/reset" else f"{line} is no command: {HELP}")
            continue
        try:
            with closing(talk.answer(line)) as pieces:
                for text in pieces:
                    print(printable(text), end="", flush=True)
        except CannotAnswer as error:
            say(f"no answer: {error}")
            continue
        except KeyboardInterrupt:
            talk.ended = STOPPED
        print(flush=True)
        rate = human_rate(talk.tokens / talk.seconds) if talk.seconds else "0/s"
        say(f"({talk.tokens} tokens, {rate}; {_ENDED[talk.ended]})")
    return ExitCode.OK


_ENDED = {"end": "it ended", "length": "cut off: see --max-tokens", "stopped": "stopped"}


def _typed() -> Iterator[str]:
    """Yield the lines that somebody types, without those that are empty."""
    while True:
        try:
            line = input("> ").encode(errors="replace").decode().strip()
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            print()
            say(HELP)
            continue
        if line:
            yield line


def _with_a_pipe(talk: Conversation, swarm: str, version: int, *, as_json: bool) -> int:
    """Answer every line of stdin on stdout; return 1 if one had no answer."""
    from client.cli.models.conversation import CannotAnswer

    code = ExitCode.OK
    for raw in sys.stdin.buffer:
        line = raw.decode(errors="replace").rstrip("\r\n")
        if not line or line == "/reset":
            if line:
                talk.reset()
            continue
        if line == "/quit":
            break
        said, problem = "", ""
        try:
            for text in talk.answer(line):
                said += text
                if not as_json:
                    print(printable(text), end="", flush=True)
        except CannotAnswer as error:
            code, problem = ExitCode.RUNTIME, str(error)
            say(f"no answer: {error}")
        if as_json:
            answer = Answer(
                swarm=swarm,
                version=version,
                prompt=line,
                text=said,
                ended="" if problem else talk.ended,
                tokens=0 if problem else talk.tokens,
                seconds=0.0 if problem else round(talk.seconds, 3),
                error=problem,
            )
            print(json_line(answer), flush=True)
        elif not problem:
            print(flush=True)
    return code
