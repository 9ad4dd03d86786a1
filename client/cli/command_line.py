"""Finds the command of a command line, runs it, and turns its result into an exit code.

A command returns an exit code or raises ``UserError``; every other exception is a fault of this
program and becomes one line and a file with the traceback.
"""

import re
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from cyclopts.exceptions import CycloptsError, UnusedCliTokensError

from client.cli.command_table import build_app
from client.cli.terminal.output import say
from client.errors import ExitCode, UsageError, UserError, first_of, solvable
from model_zoo.specs.packages import MissingPackage

MAX_TRACEBACK_CHARS: Final = 64 * 1024


def run_command(arguments: Sequence[str]) -> int:
    """Run one command line and return the process's exit code.

    Raises:
        KeyboardInterrupt: the user has ended it.
    """
    tokens = [token for token in arguments if token != "--debug"]
    debug = len(tokens) != len(arguments)
    try:
        result = build_app()(tokens, exit_on_error=False, print_error=False, verbose=False)
        sys.stdout.flush()
    except CycloptsError as error:
        return _explain(_misused(error))
    except BrokenPipeError:
        return _silence_stdout()
    except BaseException as error:
        return _failed(error, debug=debug)
    return int(result or ExitCode.OK)


def _failed(error: BaseException, *, debug: bool) -> int:
    """Explain what ended a command. Nurseries wrap exceptions in groups; a user's mistake inside
    one is still a user's mistake."""
    known = solvable(error)
    if known is not None and not (debug and isinstance(error, OSError)):
        return _explain(known)
    if first_of(BaseExceptionGroup("", [error]), KeyboardInterrupt) is not None:
        raise KeyboardInterrupt from None
    if debug or not isinstance(error, Exception):
        raise error
    if isinstance(error, MissingPackage):
        return _explain(UserError(str(error), exit_code=ExitCode.CONFIG))
    if isinstance(error, ImportError) and not _is_own(error):
        return _explain_package(error)
    return _explain_crash(error)


def _misused(error: CycloptsError) -> UserError:
    """Return what is wrong with a command line, in this program's words."""
    words = re.sub(r"(?<!\.)\.$", "", " ".join(str(error).split()))
    if isinstance(error, UnusedCliTokensError):
        words = f"unexpected: {' '.join(error.unused_tokens or ())}; names of flags begin with --"
    command = " ".join(("volunteer", *(error.command_chain or ())))
    return UsageError(words, f"{command} --help lists what it takes")


def _explain(error: UserError) -> int:
    with suppress(OSError):
        sys.stdout.flush()  # else its rest is tried again at the end, and fails aloud
    if error.told:
        return int(error.exit_code)
    say(f"volunteer: {error}")
    if error.next_step:
        say(f"  {error.next_step}")
    return int(error.exit_code)


def _explain_crash(error: Exception) -> int:
    say(f"volunteer: internal error: {_one_line(error)}")
    say(f"  {_keep_traceback(error)}; please report it")
    return ExitCode.RUNTIME


def _keep_traceback(error: Exception) -> str:
    """Add the traceback to the errors of this home, and say where that is, for the report."""
    from client.cli.logging.log_file import append_error
    from client.cli.reach.home import home_with_faults

    text = "".join(traceback.format_exception(error))[-MAX_TRACEBACK_CHARS:]
    path = None
    with suppress(UserError):  # there is no home
        path = append_error(home_with_faults()[0].folders.logs, text)
    if path is None:
        return "the traceback could not be saved; run again with --debug"
    return f"the traceback is in {path}"


def _is_own(error: ImportError) -> bool:
    return (error.name or "").partition(".")[0] in ("client", "protocol", "model_zoo")


def _explain_package(error: ImportError) -> int:
    say(f"volunteer: a package that this needs does not load: {_one_line(error)}")
    say("  volunteer doctor says which, and what to do")
    return ExitCode.CONFIG


def _one_line(error: Exception) -> str:
    if isinstance(error, ExceptionGroup):
        return _one_line(error.exceptions[0])
    words = " ".join(str(error).split())
    return f"{type(error).__name__}: {words[:200]}"


def _silence_stdout() -> int:
    """The reader of our output has ended, which is no error."""
    sys.stdout = None
    return ExitCode.OK
