"""The Cyclopts application: every command by name only.

Commands are named as text and imported when called, so ``volunteer --help`` loads neither torch nor
libp2p nor Textual, and nothing of the client imports its laboratory.
"""

from __future__ import annotations

from cyclopts import App, Group

from client.cli.command_table import (
    COMMANDS,
    EPILOGUE,
    FIRST,
    GROUPS,
    PARAMETER,
)
from client.cli.software import software_version

HELP = (
    "Train one language model together with strangers. Every volunteer runs this program; there "
    "is no server. Found a swarm with create, take part in one with join, watch it with status, "
    "and use what it learned with sample and export."
)

PANELS = {name: Group(name, sort_key=place) for place, name in enumerate(GROUPS)}


def build_app() -> App:
    """Return the command line with every command registered by name only."""
    app = App(
        name="volunteer",
        help=HELP,
        help_epilogue=EPILOGUE,
        help_format="markdown",
        version=software_version,
        default_parameter=PARAMETER,
        suppress_keyboard_interrupt=False,
        result_action="return_value",
    )
    for name, command in COMMANDS.items():
        code = f"{command.module}:{'app' if command.nested else name}"
        own = {} if command.nested else {"help_epilogue": command.epilogue}
        place = FIRST.index(name) if name in FIRST else len(FIRST)
        group = PANELS[command.group]
        app.command(code, name=name, help=command.summary, group=group, sort_key=place, **own)
    return app
