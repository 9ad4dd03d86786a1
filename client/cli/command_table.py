"""The commands of ``volunteer``: one file each, whose docstring is the page of its help.

The first line says what the command is for. ``Group:`` names the panel of the help that lists it;
those in ``FIRST`` have none. Lines that begin with ``$`` are examples, each with its effect behind
``#``. The rest is shown below them. The files are read, and imported when the command is called: so
``volunteer --help`` loads neither torch nor libp2p nor Textual, and nothing of the client imports
its laboratory. Of the docstring of a command's function the help shows the parameters alone.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cyclopts import App, Group, Parameter

from client.cli.software import version_words

CLIENT: Final = Path(__file__).parents[1]
FIRST_GROUP: Final = "First"
FIRST: Final = (
    "join",
    "attach",
    "status",
    "pause",
    "resume",
    "finish",
    "logs",
    "doctor",
    "invite",
    "sample",
)
"""What a volunteer needs, in the order in which the help lists it before all else."""
GROUPS: Final = (
    FIRST_GROUP,
    *(f"More: {rest}" for rest in ("the swarm", "the model", "this machine")),
    "More: try and measure",
)

HELP: Final = (
    "Train one language model together with strangers. Every volunteer runs this program; there "
    "is no server. Found a swarm with create, take part in one with join, watch it with status, "
    "and use what it learned with sample and export."
)
EPILOGUE: Final = (
    "Every command takes --help, and --debug, which shows tracebacks. Settings come from flags, "
    "then from VOLUNTEER_* variables, then from the configuration file.\n\n"
    "Exit codes: 0 ok, 1 failed, 2 usage, 3 not running, 69 swarm unreachable, 75 try again "
    "later, 77 refused, 78 configuration, 130 interrupted."
)
"""The text below all help, in Markdown."""
_EXAMPLE: Final = re.compile(r"^\$ volunteer (.+?)\s+# (.+)$", re.MULTILINE)
_GROUP: Final = re.compile(r"^Group: (.+)$", re.MULTILINE)


def _default_words(value: object) -> Any:
    """Return a default for the help; None where it is obvious."""
    return None if value is None or value is False or value in ("", ()) else str(value)


PARAMETER: Final = Parameter(negative=(), show_default=_default_words)
"""Defaults of every flag: there is no --no-x, and a switch is off."""


@dataclass(frozen=True, slots=True)
class Command:
    """One command of ``volunteer``."""

    module: str
    """Of its code, which has a function of the command's name."""
    group: str
    summary: str
    examples: tuple[tuple[str, str], ...]
    """Command lines without the first word, each with its effect."""
    note: str
    nested: bool
    """Whether it has commands of its own."""

    @property
    def epilogue(self) -> str:
        """The text below its help, in Markdown."""
        lines = [f"- volunteer {line}  \n  {words}" for line, words in self.examples]
        examples = "\n".join(["Examples:\n", *lines]) if lines else ""
        return "\n\n".join(part for part in (examples, self.note, EPILOGUE) if part)


def _read(path: Path) -> Command:
    source = path.read_text(encoding="utf-8")
    page = source.split('"""')[1]
    summary, _, rest = page.partition("\n")
    group = _GROUP.search(rest)
    examples = tuple((" ".join(line.split()), words) for line, words in _EXAMPLE.findall(rest))
    return Command(
        module=".".join(("client", *path.relative_to(CLIENT).with_suffix("").parts)),
        group=f"More: {group[1]}" if group else FIRST_GROUP,
        summary=summary,
        examples=examples,
        note=_EXAMPLE.sub("", _GROUP.sub("", rest)).strip(),
        nested="\napp = " in source,
    )


def _found() -> Iterator[tuple[str, Path]]:
    """Yield every command with its file; those of the laboratory test or measure volunteers."""
    for path in sorted((CLIENT / "cli" / "commands").glob("[a-z]*.py")):
        yield path.stem, path
    for path in sorted((CLIENT / "lab").glob("*/command.py")):
        yield path.parent.name, path


COMMANDS: Final = {name: _read(path) for name, path in _found()}


def nested_app(name: str) -> App:
    """Return the app of a command that has commands of its own."""
    epilogue = COMMANDS[name].epilogue
    return App(name=name, default_parameter=PARAMETER, help_epilogue=epilogue)


def build_app() -> App:
    """Return the command line with every command registered by name only."""
    app = App(
        name="volunteer",
        help=HELP,
        help_epilogue=EPILOGUE,
        help_format="markdown",
        version=version_words,
        default_parameter=PARAMETER,
        suppress_keyboard_interrupt=False,
        result_action="return_value",
    )
    panels = {name: Group(name, sort_key=place) for place, name in enumerate(GROUPS)}
    for name, command in COMMANDS.items():
        code = f"{command.module}:{'app' if command.nested else name}"
        own = {} if command.nested else {"help_epilogue": command.epilogue}
        place = FIRST.index(name) if name in FIRST else len(FIRST)
        group = panels[command.group]
        app.command(code, name=name, help=command.summary, group=group, sort_key=place, **own)
    return app
