"""The ``volunteer`` command: finds the command asked for, runs it, turns its end into an exit code.

Commands are named here as text and imported when called, so ``volunteer --help`` loads neither
torch nor libp2p nor Textual. A command returns an exit code or raises ``UserError``; everything
else that escapes is a fault of this program and becomes one line and a file with the traceback.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence

from cyclopts import App, Group

from client.cli.commands import COMMANDS, EPILOGUE, GROUP_NAMES, PARAMETER
from client.cli.crash import save_traceback
from client.cli.output import say
from client.errors import ExitCode, UserError, first_of

HELP = (
    "Train one language model together with strangers. Every volunteer runs this program; there "
    "is no server. Found a swarm with create, take part in one with join, watch it with status, "
    "and use what it learned with sample and export."
)

GROUPS = {name: Group(name, sort_key=place) for place, name in enumerate(GROUP_NAMES)}


def build_app() -> App:
    """Return the command line with every command registered by name only."""
    app = App(
        name="volunteer",
        help=HELP,
        help_epilogue=EPILOGUE,
        help_format="plaintext",
        version=_version,
        default_parameter=PARAMETER,
        suppress_keyboard_interrupt=False,
        result_action="return_value",
    )
    for position, (name, command) in enumerate(COMMANDS.items()):
        code = f"client.cli.{name}:{'app' if command.nested else name}"
        own = {} if command.nested else {"help_epilogue": command.epilogue}
        group = GROUPS[command.group]
        app.command(code, name=name, help=command.summary, group=group, sort_key=position, **own)
    return app


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return the process's exit code."""
    tokens = [token for token in arguments if token != "--debug"]
    debug = len(tokens) != len(arguments)
    try:
        result = build_app()(tokens)
        sys.stdout.flush()
    except UserError as error:
        return _explain(error)
    except KeyboardInterrupt:
        return _interrupted()
    except BrokenPipeError:
        return _silence_stdout()
    except BaseExceptionGroup as group:
        # Nurseries wrap what escapes them; a user's mistake or wish is still just that.
        known = first_of(group, UserError)
        if known is not None:
            return _explain(known)
        if first_of(group, KeyboardInterrupt) is not None:
            return _interrupted()
        if debug or not isinstance(group, Exception):
            raise
        return _explain_crash(group)
    except Exception as error:
        if debug:
            raise
        return _explain_crash(error)
    return int(result or ExitCode.OK)


def main() -> None:
    """Entry point of the console script."""
    if not sys.warnoptions:
        warnings.simplefilter("ignore")  # warnings are for developers; users get sentences
    sys.exit(run(sys.argv[1:]))


def _version() -> str:
    from client.cli.version import software_version

    return software_version()


def _interrupted() -> int:
    say("volunteer: interrupted")
    return ExitCode.INTERRUPTED


def _explain(error: UserError) -> int:
    if error.told:
        return int(error.exit_code)
    say(f"volunteer: {error}")
    if error.next_step:
        say(f"  {error.next_step}")
    return int(error.exit_code)


def _explain_crash(error: Exception) -> int:
    place = save_traceback(error)
    say(f"volunteer: internal error: {_one_line(error)}")
    say(f"  {place}; please report it")
    return ExitCode.RUNTIME


def _one_line(error: Exception) -> str:
    if isinstance(error, ExceptionGroup):
        return _one_line(error.exceptions[0])
    words = " ".join(str(error).split())
    return f"{type(error).__name__}: {words[:200]}"


def _silence_stdout() -> int:
    """Whoever read our output has left; that is their right and no error."""
    sys.stdout = None
    return ExitCode.OK


if __name__ == "__main__":
    main()
