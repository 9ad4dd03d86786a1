"""Writes the manual page and the shell completions from the command line itself.

    python packaging/generate.py            # write them anew
    python packaging/generate.py --check    # end with 1 if those in the repository are old

They are kept in the repository because packagers want them without running anything, and the
wheel carries them. A test runs the check, so that no flag is added without them.
"""

from __future__ import annotations

import sys
from pathlib import Path

from man_page import man_page

from client.cli.app import build_app

HERE = Path(__file__).parent
COMPLETIONS = {"bash": "volunteer.bash", "zsh": "_volunteer", "fish": "volunteer.fish"}


def generated() -> dict[Path, str]:
    """Return every generated file with what should be in it."""
    app = build_app()
    files = {
        HERE / "completions" / name: app.generate_completion(shell=shell)  # type: ignore[arg-type]
        for shell, name in COMPLETIONS.items()
    }
    files[HERE / "man" / "volunteer.1"] = man_page(app)
    return files


def main() -> int:
    """Write or check the files; return the exit code."""
    old = [
        (path, text)
        for path, text in generated().items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    for path, text in old:
        if "--check" in sys.argv:
            print(f"old: {path.relative_to(HERE.parent)}; run: make packaging", file=sys.stderr)
            continue
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path.relative_to(HERE.parent)}")
    return int(bool(old) and "--check" in sys.argv)


if __name__ == "__main__":
    sys.exit(main())
