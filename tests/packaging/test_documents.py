"""The documents for people: the README stays a page, links lead somewhere, commands exist."""

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from cyclopts import App

from client.cli.command_table import COMMANDS, build_app

ROOT = Path(__file__).parents[2]
MAX_README_LINES, MAX_README_WORDS = 120, 1200
FOLDERS = ("client", "protocol", "model_zoo", "packaging", "tests")
PAGES = [
    page
    for folder in FOLDERS
    for page in (ROOT / folder).rglob("*.md")
    if "node_modules" not in page.parts
]
TOP = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
DOCUMENTS = (*TOP, *(str(page.relative_to(ROOT)) for page in PAGES))
WITH_COMMANDS = ("README.md", "client/GUIDE.md", "client/README.md", "packaging/README.md")


def test_the_readme_is_a_page() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= MAX_README_LINES
    assert len(text.split()) <= MAX_README_WORDS


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_lead_to_a_file_and_a_heading(name: str) -> None:
    page = ROOT / name
    for target in re.findall(r"\]\(([^)\s]+)\)", _prose(page)):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), target
        assert not anchor or anchor in _headings(found), target


def test_the_tests_of_faults_that_people_met_exist() -> None:
    rows = [line for line in (ROOT / "tests" / "faults.md").read_text().splitlines() if "`" in line]
    assert len(rows) > 90
    path = ""
    for row in rows:
        named = re.findall(r"`([^`:]*)::([^`]+)`", row.rsplit("|", 2)[-2])
        for file, test in named:
            path = file or path
            defined = set(re.findall(r"(?:def|class) (\w+)", (ROOT / path).read_text()))
            for part in re.sub(r"\[.*", "", test).split("::"):
                assert part in defined or part.endswith("…"), f"{path}::{test}"


def test_make_targets_that_pages_and_workflows_name_exist() -> None:
    targets = set(re.findall(r"(?m)^([a-z]+):", (ROOT / "Makefile").read_text()))
    workflows = list((ROOT / ".github" / "workflows").glob("*.yml"))
    assert len(workflows) == 2
    pages = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "tests/README.md")]
    for page in (*pages, *workflows):
        typed = re.findall(r"(?m)(?:^|`|run: )make ([a-z]+)", page.read_text())
        assert set(typed) <= targets, page


@pytest.mark.parametrize("name", WITH_COMMANDS)
def test_commands_and_their_flags_exist(name: str) -> None:
    typed = list(_typed((ROOT / name).read_text()))
    assert typed
    for words in typed:
        command, rest = _command(words)
        known = _flags(command)
        for word in rest:
            flag = word.partition("=")[0]
            assert not flag.startswith("-") or flag == "-" or flag in known, " ".join(words)


def _prose(page: Path) -> str:
    return re.sub(r"(?ms)^```.*?^```$", "", page.read_text())


def _headings(page: Path) -> set[str]:
    """Return the anchors of a page, as GitHub makes them."""
    titles = re.findall(r"(?m)^#+ (.*)$", _prose(page))
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def _typed(text: str) -> Iterator[list[str]]:
    """Yield the words behind every ``volunteer`` in code that begins with a command's name, and
    behind each with which code begins."""
    blocks = re.findall(r"(?ms)^```\w*\n(.*?)^```$", text)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    inline = re.findall(r"`([^`]+)`", re.sub(r"(?ms)^```.*?^```$", "", text))
    for code in [*lines, *(piece.replace("\n", " ") for piece in inline)]:
        for before, after in re.findall(r"(^|[\s/])volunteer ([^;|&<>#()]*)", code):
            words = shlex.split(after) if after.count("'") % 2 == 0 else after.split()
            if words and (words[0] in COMMANDS or (not before and words[0][:1].islower())):
                yield words


def _command(words: list[str]) -> tuple[tuple[str, ...], list[str]]:
    """Split into the command, with its subcommand, and what follows."""
    if COMMANDS[words[0]].nested and len(words) > 1 and not words[1].startswith("-"):
        return tuple(words[:2]), words[2:]
    return (words[0],), words[1:]


@cache
def _flags(command: tuple[str, ...]) -> frozenset[str]:
    app: App = build_app()
    for name in command:
        app = app[name]
    names = {name for argument in app.assemble_argument_collection() for name in argument.names}
    return frozenset(names | {"--help", "--debug"})
