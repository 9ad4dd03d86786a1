"""Writes the manual page, the completions, the units of instances and the table of settings.

    python packaging/generate.py            # write them anew
    python packaging/generate.py --check    # end with 1 if a file in the repository is old

The manual page and the completions are made for the wheel and not kept in the repository.
"""

import sys
from pathlib import Path

from man_page import man_page

from client.cli.command_table import build_app
from client.config import SETTINGS, Settings

HERE = Path(__file__).parent
README = HERE.parent / "client" / "README.md"
UNITS = HERE / "systemd"
TEMPLATES = {
    "system": (
        ("/etc/volunteer/swarm", "/etc/volunteer/%i.swarm"),
        ("/etc/volunteer/environment", "/etc/volunteer/%i.environment"),
        ("/var/lib/volunteer", "/var/lib/volunteer-%i"),
        ("StateDirectory=volunteer", "StateDirectory=volunteer-%i"),
        ("Description=Volunteer:", "Description=Volunteer %i:"),
    ),
    "user": (
        ("user/volunteer.service", "user/volunteer@.service"),
        ("volunteer/swarm", "volunteer/%i.swarm"),
        (
            "EnvironmentFile=-%E/volunteer/environment",
            "EnvironmentFile=-%E/volunteer/%i.environment\n"
            "Environment=VOLUNTEER_HOME=%h/.local/share/volunteer-%i",
        ),
        ("Description=Volunteer:", "Description=Volunteer %i:"),
    ),
}
"""Units of which a machine may run several: what is in the unit of one, and in its place."""
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
    for kind, changes in TEMPLATES.items():
        unit = (UNITS / kind / "volunteer.service").read_text(encoding="utf-8")
        for before, after in changes:
            unit = unit.replace(before, after)
        files[UNITS / kind / "volunteer@.service"] = unit
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
        (path, wanted)
        for path, wanted in (kept() if check else kept() | made_for_the_wheel()).items()
        if not path.exists() or path.read_text(encoding="utf-8") != wanted
    ]
    for path, written in old:
        if check:
            print(f"old: {path.relative_to(HERE.parent)}; run: make packaging", file=sys.stderr)
            continue
        path.parent.mkdir(exist_ok=True)
        path.write_text(written, encoding="utf-8")
        print(f"wrote {path.relative_to(HERE.parent)}")
    return int(bool(old) and check)


if __name__ == "__main__":
    sys.exit(main())
