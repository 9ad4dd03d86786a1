"""Talk with the model that a swarm has trained so far.

Group: the model

$ volunteer chat  # in the terminal; Ctrl-D ends
$ volunteer chat --system "Answer briefly." --top-p 0.9  # where the tokenizer has a template
$ volunteer chat --model model  # a folder of volunteer export: it starts sooner
$ volunteer chat < questions.txt  # a line of text for each line

In a conversation /reset forgets what was said, /quit ends, and Ctrl-C stops an answer. A model
whose tokenizer has no chat template continues your text. It needs transformers: pip install
"volunteer[hf]".
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter, validators

from client.cli.commands.export import explained, export_whole
from client.cli.reach.home import Home, find_home
from client.cli.reach.target import find_swarm
from client.cli.terminal.output import say
from client.cli.terminal.parameters import Checkpoints, KnownSwarm
from client.errors import ExitCode, UserError
from protocol.invite import Target

if TYPE_CHECKING:
    from client.cli.models.talk import Talk  # which imports transformers

HELP = "/reset forgets what was said, /quit or Ctrl-D ends, Ctrl-C stops an answer"
IN_MESSAGES = "it is talked to by the chat template of its tokenizer"
IN_TEXT = (
    "its tokenizer has no chat template: it continues your text, as it learned to, and does not "
    "know of questions and answers"
)


def chat(
    *,
    swarm: KnownSwarm = None,
    checkpoint: Checkpoints = (),
    model: Path | None = None,
    system: str = "",
    max_tokens: Annotated[int, Parameter(validator=validators.Number(gte=1))] = 256,
    temperature: Annotated[float, Parameter(validator=validators.Number(gte=0))] = 0.8,
    top_k: Annotated[int, Parameter(validator=validators.Number(gte=1))] = 40,
    top_p: Annotated[float, Parameter(validator=validators.Number(gt=0, lte=1))] = 1.0,
    seed: int = 0,
) -> int:
    """Talk with the model a swarm has trained so far; transformers computes the answers.

    Parameters
    ----------
    model
        Folder of volunteer export, instead of a swarm: it starts sooner, with the same version.
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
    target = find_swarm(home, swarm) if model is None else None
    if find_spec("transformers") is None:
        problem = "transformers, which computes the answers, is not installed"
        raise UserError(problem, 'pip install "volunteer[hf]"', ExitCode.CONFIG)
    with tempfile.TemporaryDirectory(prefix="volunteer-chat-") as made:
        if target is not None:
            _export(home, target, checkpoint, Path(made))
        from client.cli.models.talk import Drawing, Talk  # transformers: when all is in order

        drawing = Drawing(max_tokens, temperature, top_k, top_p, seed)
        talk = Talk(model or Path(made), drawing, system)
        say(IN_MESSAGES if talk.in_messages else IN_TEXT)
        return _converse(talk)


def _export(home: Home, target: Target, folders: tuple[Path, ...], out: Path) -> None:
    """Save the newest model, whole, where transformers reads it."""
    from client.cli.models.newest import needed_tokenizer, newest_model

    trained = newest_model(home, target, folders)
    needed_tokenizer(trained)
    with explained(out):
        export_whole(trained, out, "fp32")
    say(f"{trained.manifest.name}, version {trained.version} of {trained.steps}")


def _converse(talk: Talk) -> int:
    """Answer a line after the other; return 1 if one had no answer."""
    from client.cli.models.talk import CannotAnswer

    code, person = ExitCode.OK, sys.stdin.isatty() and sys.stdout.isatty()
    if person:
        say(HELP)
        with suppress(ImportError):
            import readline  # noqa: F401  (lines can be edited and called back)
    for line in _typed() if person else _piped():
        if line == "/quit":
            break
        if line == "/reset":
            talk.reset()
        elif person and line.startswith("/"):
            say(f"{line} is no command: {HELP}")
        else:
            try:
                talk.answer(line)
                print(flush=True)
            except CannotAnswer as error:
                say(f"no answer: {error}")
                code = ExitCode.OK if person else ExitCode.RUNTIME
            except KeyboardInterrupt:
                if not person:
                    raise
                print(flush=True)
    return code


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


def _piped() -> Iterator[str]:
    """Yield the lines of stdin, without those that are empty."""
    for raw in sys.stdin.buffer:
        if line := raw.decode(errors="replace").rstrip("\r\n"):
            yield line
