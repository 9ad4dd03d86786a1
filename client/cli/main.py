"""Entry point of ``volunteer``. Loads itself nothing, so that an interrupt is one line from the
first moment on, and no traceback while the modules of a command load.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence

INTERRUPTED = 130
"""``ExitCode.INTERRUPTED``, before that is loaded."""


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return the process's exit code."""
    try:
        from client.cli.command_line import run_command

        return run_command(arguments)
    except KeyboardInterrupt:
        print("volunteer: interrupted", file=sys.stderr)
        return INTERRUPTED


def main() -> None:
    """Entry point of the console script."""
    if not sys.warnoptions:
        warnings.simplefilter("ignore")  # warnings are for developers; users get sentences
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
