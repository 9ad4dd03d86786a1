"""Turn text into tokens to train on, and show them.

Group: the model

$ volunteer data build books/ --tokenizer train:16384 --out tokens  # on all cores; resumable
$ volunteer create --data tokens  # a swarm that trains on them
$ volunteer data show 0 tokens  # the text of the first sample

A build reads text and .jsonl, both also as .gz or .zst, and .parquet. Rows that cannot be used are
left out and counted, and index.json lists the first hundred. One that was interrupted goes on where
it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter, validators
from msgspec import Struct

from client.cli.command_table import nested_app
from client.cli.founding.tokenizing import (
    BuildLine,
    chosen_tokenizer,
    data_errors,
    say_left_out,
    skipped,
)
from client.cli.terminal.answer import Answer, answered
from client.cli.terminal.mixture_text import repeats, shares, times
from client.errors import UsageError
from client.views.text import aligned
from client.views.words import size as human_bytes
from model_zoo.specs.tokens import NOT_LEARNED

if TYPE_CHECKING:
    from model_zoo.datasets.folder import Folder, Index
    from model_zoo.specs.data import Answers

app = nested_app("data")
Positive = Annotated[int, Parameter(validator=validators.Number(gte=1))]
NotNegative = Annotated[int, Parameter(validator=validators.Number(gte=0))]
CHAT_CONTEXT = 1024
USUAL_CONTEXT = 256


class PartView(Struct, frozen=True):
    """A part of a mixture."""

    name: str
    tokens: int
    root: str
    """Digest of its tokens, in hex."""
    weight: int
    share: float
    """Of the samples, from 0 to 1."""
    times: float
    """How often it is read while as many tokens are read as the mixture has."""


@app.command
@answered
def build(
    *sources: Path,
    out: Annotated[Path, Parameter(name=("--out", "-o"))],
    tokenizer: str = "bytes",
    field: str = "text",
    chat: Annotated[bool, Parameter(negative=())] = False,
    context: Positive | None = None,
) -> Answer:
    """Turn text into tokens; a build that was interrupted goes on where it was.

    Args:
        sources: Text files, .jsonl, .parquet, .gz, .zst, and folders of them.
        out: Folder for the tokens. What an unfinished build of other sources or settings left there
            is removed.
        tokenizer: bytes, a tokenizer.json, a folder with one, or train:16384 for a new one of so
            many tokens.
        field: Field of JSON lines and column of parquet that has the text.
        chat: The sources are JSON lines of conversations, with messages (or ShareGPT's
            conversations), or with a prompt and a completion; only answers are learned. Messages
            need a tokenizer's folder with a chat template.
        context: With --chat, tokens of the swarm's context (default: 1024): a window, which has as
            many conversations as fit, none of which sees another. Longer ones are cut.
    """
    if not sources:
        raise UsageError("there is nothing to read", "name files or folders")
    if context is not None and not chat:
        problem = "--context is for conversations; texts are cut when they are trained on"
        raise UsageError(problem, "leave it out, or add --chat")
    from model_zoo.datasets.build import build as make

    with data_errors(), BuildLine() as line:
        folder = make(
            sources,
            out,
            tokenizer=chosen_tokenizer(tokenizer),
            field=field,
            context=(context or CHAT_CONTEXT) if chat else None,
            tell=line.show,
            left_out=say_left_out,
        )
    return _report(folder)


@app.command
@answered
def mix(*folders: str, out: Annotated[Path, Parameter(name=("--out", "-o"))]) -> Answer:
    """Join data folders into one, each with its share of what a run reads.

    Args:
        folders: Data folders of one tokenizer, as web:7 code:2.5 with their shares of the tokens
            that a run reads.
        out: Folder for the mixture. The tokens are copied; what was interrupted goes on where it
            was.
    """
    from model_zoo.datasets.mix import mix as join
    from model_zoo.datasets.mix import parse_choice

    with data_errors(), BuildLine("mixing") as line:
        folder = join([parse_choice(text) for text in folders], out, tell=line.show)
    return _report(folder)


@app.command
@answered
def show(
    id: NotNegative,
    folder: Path,
    /,
    *,
    context: Positive | None = None,
    microbatch: Positive = 1,
    seed: NotNegative = 1337,
) -> Answer:
    """Print the text of a microbatch's samples, as every volunteer of a swarm computes it.

    Args:
        id: Number of the microbatch in the run, from 0.
        folder: The data folder.
        context: Longest sequence in tokens (default: 256, or what conversations were cut for).
        microbatch: Sequences per microbatch.
        seed: Seed of the run.
    """
    from model_zoo.data import plain_tokens
    from model_zoo.datasets.corpus import Corpus
    from model_zoo.datasets.folder import open_folder

    with data_errors():
        opened = open_folder(folder)
        corpus = Corpus.from_folder(opened)
        answers = opened.index.spec.answers
        usual = answers.context if answers else USUAL_CONTEXT
        rows = corpus.sample(id, microbatch, context or usual, seed)
    texts = [corpus.text_of(row) for row in rows]
    numbers = range(id * microbatch, (id + 1) * microbatch)
    found = [corpus.spec.part_of(number) for number in numbers]
    parts = [part.name for part in found if part is not None]
    learned = [corpus.text_of(row[row < NOT_LEARNED]) for row in rows] if answers else []
    tokens = plain_tokens(rows).tolist()
    document = {"id": id, "tokens": tokens, "texts": texts, "learned": learned, "parts": parts}
    if parts:
        texts = [f"from {part}:\n{text}" for part, text in zip(parts, texts, strict=True)]
    return Answer(document, texts)


def _report(folder: Folder) -> Answer:
    index, parts = folder.index, _parts(folder.index)
    sizes = {"tokens": index.spec.tokens, "vocab": index.spec.vocab}
    document = {"folder": str(folder.path), **sizes, "index": index, "parts": parts}
    notes = [describe(index), *_described_parts(index, parts)]
    notes += skipped(index)
    return Answer(document, str(folder.path), notes)


def _described_parts(index: Index, parts: list[PartView]) -> Iterator[str]:
    if parts:
        rows = [[p.name, f"{p.tokens:,}", f"{p.share:.2%}", f"{p.times:,.2f}"] for p in parts]
        yield from aligned(["part", "tokens", "share", "times"], rows)
        when = "while as many tokens are read as the mixture has,"
        yield from (
            f"note: {note}" for note in repeats(index.spec.parts, [p.times for p in parts], when)
        )


def describe(index: Index) -> str:
    """Return a description of a data folder in a line or two."""
    tally = index.tally
    texts = "one text" if tally.texts == 1 else f"{tally.texts:,} texts"
    made_of = f"{texts} of {human_bytes(tally.text_bytes)}"
    words = f"{index.spec.tokens:,} tokens of {index.spec.vocab:,} kinds, made of {made_of}"
    if index.spec.tokens and index.spec.tokenizer:
        words += f": {tally.text_bytes / index.spec.tokens:.2f} bytes a token"
    if index.spec.answers:
        words += f"\n{talk(index, index.spec.answers)}"
    if tally.replaced:
        words += f"\nin {tally.replaced} places the text was not UTF-8"
    return words


def talk(index: Index, answers: Answers) -> str:
    """Return a description of conversations: what is learned of them, and what is lost."""
    tally = index.tally
    share = tally.padding / max(1, index.spec.tokens)
    windows = max(1, index.spec.tokens // answers.context)
    words = (
        f"conversations in {windows:,} windows of {answers.context} tokens, "
        f"{tally.texts / windows:.1f} to one: "
        f"{answers.learned / index.spec.tokens:.1%} are learned, {share:.1%} are padding"
    )
    if tally.cut:
        words += f"\n{tally.cut:,} were longer: their ends are left out"
    if tally.left_out:
        words += f"\n{tally.left_out:,} more are left out: no answer begins within the window"
    return words


def _parts(index: Index) -> list[PartView]:
    if not index.spec.parts:
        return []
    spec = index.spec
    each = zip(index.spec.parts, shares(index.spec.parts), times(spec), strict=True)
    return [
        PartView(part.name, spec.part_tokens(part), part.digest, part.weight, share, often)
        for part, share, often in each
    ]
