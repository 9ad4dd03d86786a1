"""What a command answers: one document, and the same in words. ``answered`` prints either."""

import inspect
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any

from client.cli.terminal.output import print_json, say, shown
from client.cli.terminal.parameters import AsJson
from client.control.snapshot import Snapshot
from client.errors import ExitCode


@dataclass(frozen=True)
class Answer:
    """The result of a command."""

    document: object
    """For programs: a Struct, or facts by name."""
    words: str | Iterable[str]
    """For people: lines of text; none are printed without any."""
    notes: Sequence[str] = ()
    """For people, on stderr before the words."""
    code: ExitCode = ExitCode.OK


def answered(command: Callable[..., Answer]) -> Callable[..., ExitCode]:
    """Give a command the flag ``--json``, print what it answers, and return its exit code."""

    @wraps(command)
    def run(*args: Any, json: bool = False, **named: Any) -> ExitCode:
        found = command(*args, **named)
        if json:
            print_json(found.document)
            return found.code
        for note in found.notes:
            say(note)
        for line in [found.words] if isinstance(found.words, str) else found.words:
            print(shown(line, sys.stdout))
        return found.code

    signature = inspect.signature(command)
    flag = inspect.Parameter("json", inspect.Parameter.KEYWORD_ONLY, default=False)
    run.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*signature.parameters.values(), flag]
    )
    run.__annotations__ = {**command.__annotations__, "json": AsJson}
    return run


def of_node(who: Snapshot, **facts: object) -> dict[str, object]:
    """Return what a volunteer answered as one document, with who it is."""
    return {"swarm": who.swarm, "swarm_name": who.swarm_name, "peer": who.peer, **facts}
