"""Writes the manual page, the completions, the units of instances and the table of settings.

    python packaging/generate.py            # write them anew
    python packaging/generate.py --check    # end with 1 if a file in the repository is old

The manual page and the completions are made for the wheel and not kept in the repository.
"""

from __future__ import annotations

import sys
from pathlib import Path

from man_page import man_page

from client.cli.app import build_app
from client.config import SETTINGS, Settings
from client.packaging_data import FILES, Kind, service_file

HERE = Path(__file__).parent
README = HERE.parent / "client" / "README.md"
UNITS = HERE.parent / "client" / "packaging_data"
TEMPLATES: tuple[Kind, ...] = ("system", "user")
BEGIN, END = "<!-- settings: made by packaging/generate.py -->\n", "<!-- end of settings -->"
COMPLETIONS = {"bash": "volunteer.bash", "zsh": "_volunteer", "fish": "volunteer.fish"}


def made_for_the_wheel() -> dict[Path, str]:
    """Return the manual page and the completions, which are not in the repository."""
    app = build_app()
    files = {
        HERE / "completions" / name: app.generate_completion(shell=shell)  # type: ignore[arg-type]
        for shell, name in COMPLETIONS.items()
    }
    files[HERE / "man" / "volunteer.1"] = man_page(app)
    return files


def kept() -> dict[Path, str]:
    """Return every generated file of the repository with what should be in it."""
    files = {}
    for kind in TEMPLATES:
        template = FILES[kind].replace("volunteer.service", "volunteer@.service")
        files[UNITS / template] = service_file(kind, instance="%i")
    files[README] = with_settings(README.read_text(encoding="utf-8"))
    return files


def with_settings(page: str) -> str:
    """Return a page with the table of all settings between its two marks."""
    defaults = Settings()
    rows = [
        "| setting, with its flag where that is another | default | for |",
        "| --- | --- | --- |",
    ]
    for name, setting in SETTINGS.items():
        short = setting.about.short_flag
        names = f"`{name}`, `{short}`" if short else f"`{name}`"
        default = setting.words(getattr(defaults, name))
        rows.append(f"| {names} | {default} | {setting.about.help} |")
    before, _, rest = page.partition(BEGIN)
    return "\n".join([f"{before}{BEGIN}", *rows, "", f"{END}{rest.partition(END)[2]}"])


def main() -> int:
    """Write or check the files; return the exit code."""
    check = "--check" in sys.argv
    old = [
        (path, text)
        for path, text in (kept() if check else kept() | made_for_the_wheel()).items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    for path, text in old:
        if check:
            print(f"old: {path.relative_to(HERE.parent)}; run: make packaging", file=sys.stderr)
            continue
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path.relative_to(HERE.parent)}")
    return int(bool(old) and check)


if __name__ == "__main__":
    sys.exit(main())
