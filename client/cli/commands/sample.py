"""Write text with the model that a swarm has trained so far.

$ volunteer sample --help  # prompt, length, temperature
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from msgspec import Struct

from client.cli.reach.home import find_home
from client.cli.reach.target import find_swarm
from client.cli.terminal.output import print_json, printable, say
from client.cli.terminal.parameters import AsJson
from client.errors import ExitCode, UserError

if TYPE_CHECKING:
    from client.cli.models.model_source import Trained  # which imports torch

DEFAULT_PROMPT = "def "
MOST_OF_PROMPT = 160
"""Tokens that follow one of the founder's prompts."""


class Sample(Struct, frozen=True):
    """Answer of ``volunteer sample --json``."""

    swarm: str
    version: int
    prompt: str
    text: str


class Written(Struct, frozen=True):
    """What the model wrote to one prompt."""

    prompt: str
    text: str


class PromptSamples(Struct, frozen=True):
    """Answer of ``volunteer sample --prompts --json``."""

    swarm: str
    version: int
    samples: list[Written]


def sample(
    prompt: str | None = None,
    /,
    *,
    prompts: Annotated[bool, Parameter(negative="")] = False,
    swarm: str | None = None,
    checkpoint: tuple[Path, ...] = (),
    length: int = 400,
    temperature: float = 0.8,
    top_k: int | None = 40,
    seed: int = 0,
    json: AsJson = False,
) -> None:
    """Write text with the model a swarm has trained so far.

    Parameters
    ----------
    prompt
        Text to go on from (default: "def ").
    prompts
        Go on from each of the founder's prompts, always with the likeliest token.
    swarm
        Name, id, invite or .swarm file (default: the only swarm known here).
    checkpoint
        Folder with checkpoints; may be repeated (default: this volunteer's own, else the swarm's).
    length
        Tokens to write; in most swarms a token is a byte.
    temperature
        0 takes the likeliest token each time; higher is more daring.
    top_k
        Draw from so many likeliest tokens only.
    seed
        Same seed, same text.
    """
    if prompts and prompt is not None:
        words = "--prompts takes the founder's prompts, and another one is given"
        raise UserError(words, "leave one of them out", ExitCode.USAGE)
    home = find_home()
    found = find_swarm(home, swarm)

    from client.cli.models.model_source import needed_model
    from client.cli.models.newest import needed_tokenizer, newest_model
    from model_zoo.sample import stream  # torch: when all else is in order

    trained = newest_model(home, found, checkpoint)
    if prompts:
        temperature, top_k, length = 0.0, None, min(length, MOST_OF_PROMPT)
    drawing: dict[str, Any] = {"temperature": temperature, "top_k": top_k, "seed": seed}
    model, tokenizer = needed_model(trained), needed_tokenizer(trained)
    write = partial(stream, model, length=length, tokenizer=tokenizer, **drawing)
    try:
        if prompts:
            _write_all(trained, write, as_json=json)
        else:
            _write_one(trained, write, DEFAULT_PROMPT if prompt is None else prompt, as_json=json)
    except ValueError as error:
        raise UserError(str(error), "see volunteer sample --help", ExitCode.USAGE) from error


def _write_one(
    trained: Trained, write: Callable[[str], Iterator[str]], prompt: str, *, as_json: bool
) -> None:
    """Go on from one prompt."""
    pieces = write(prompt)
    if as_json:
        print_json(Sample(trained.swarm, trained.version, prompt, "".join(pieces)))
        return
    say(f"{trained.manifest.name}, version {trained.version} of {trained.steps}")
    _print(prompt, pieces)


def _write_all(trained: Trained, write: Callable[[str], Iterator[str]], *, as_json: bool) -> None:
    """Go on from each of the founder's prompts."""
    given = trained.manifest.prompts
    if not given:
        words = f"{trained.manifest.name} was founded without prompts"
        raise UserError(words, 'give one: volunteer sample "Once upon a time"', ExitCode.USAGE)
    if as_json:
        samples = [Written(one, printable("".join(write(one)))) for one in given]
        print_json(PromptSamples(trained.swarm, trained.version, samples))
        return
    say(f"{trained.manifest.name}, version {trained.version} of {trained.steps}")
    for one in given:
        _print(one, write(one))
        print()


def _print(prompt: str, pieces: Iterator[str]) -> None:
    print(printable(prompt), end="", flush=True)
    for text in pieces:
        print(printable(text), end="", flush=True)
    print()
