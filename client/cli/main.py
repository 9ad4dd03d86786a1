"""Entry point of ``volunteer``. Loads itself nothing, so that an interrupt is one line from the
first moment on, and no traceback while the modules of a command load.
"""

import os
import signal
import sys
import warnings
from collections.abc import Sequence
from io import TextIOWrapper

INTERRUPTED = 130
"""``ExitCode.INTERRUPTED``, before that is loaded."""


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return the process's exit code."""
    try:
        from client.cli.command_line import run_command

        return run_command(arguments)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a second one ends it without a traceback
        print("volunteer: interrupted", file=sys.stderr)
        return INTERRUPTED


def main() -> None:
    """Entry point of the console script."""
    _open_closed()
    if isinstance(sys.stdout, TextIOWrapper):  # as stderr does: a locale may lack a character
        sys.stdout.reconfigure(errors="backslashreplace")
    if not sys.warnoptions:
        warnings.simplefilter("ignore")  # warnings are for developers; users get sentences
    sys.exit(run(sys.argv[1:]))


def _open_closed() -> None:
    """Open what was closed of stdin, stdout and stderr: a file that is opened later would else take
    its place, and get what is meant for it."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_RDWR)
            os.dup2(opened, number)
            if opened != number:
                os.close(opened)
            setattr(sys, name, os.fdopen(number, "w" if number else "r"))


if __name__ == "__main__":
    main()
