"""The command line as a process of its own, with a home of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[3]


class Volunteer:
    """Runs ``volunteer`` with some arguments; ``stdin`` and more variables by keyword."""

    def __init__(self, home: Path) -> None:
        clean = {key: text for key, text in os.environ.items() if not key.startswith("VOLUNTEER_")}
        self.environment = {**clean, "VOLUNTEER_HOME": str(home), "COLUMNS": "200"}

    def __call__(
        self, *arguments: str, stdin: str = "", **variables: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "client.cli.main", *arguments],
            env={**self.environment, **variables},
            input=stdin,
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
