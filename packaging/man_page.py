"""Turns the help of the command line into volunteer(1).

Reads the Markdown that cyclopts makes of every command (``App.generate_docs``), whose form is
regular: a heading for each command, ``**Group**:`` and ``* `--flag ARG`: words`` below it. Writes
mdoc, the macro language of manual pages that both mandoc and groff read. The settings, which are
the same for several commands, are written once.
"""

import re
import textwrap
from collections.abc import Iterator

from cyclopts import App

DATE = "November 21, 2026"
WIDTH = 78
OPENING = (".Sh", ".Ss", ".Pp")
SETTINGS = "Settings: "
HEADING = re.compile(r"##+ (?P<command>volunteer .+)")
GROUP = re.compile(r"\*\*(?P<title>.+)\*\*:")
ITEM = re.compile(r"\* `(?P<term>[^`]+)`:\s*(?P<words>.*)")
LINKED_ITEM = re.compile(r"\* \[`")
EXAMPLE = re.compile(r"^- (.+)  \n  (.+)$", re.MULTILINE)
REMARK = re.compile(r"\*\[(?P<remark>.*?)\]\*|\*\*\[(?P<strong>.*?)\]\*\*")
EXIT_CODE = re.compile(r"(\d+) ([^,.]+)")
ENVIRONMENT = {
    "VOLUNTEER_HOME": "Folder that holds settings, identity, checkpoints and sockets; several "
    "volunteers on one machine have one each.",
    "VOLUNTEER_*": "Every setting above, in capitals: VOLUNTEER_THREADS=4.",
    "NO_COLOR": "No colours.",
}


def man_page(app: App) -> str:
    """Return the manual page of the whole command line, as mdoc."""
    lines = _unfolded(app.generate_docs(output_format="markdown"))
    epilogue = str(app.help_epilogue)
    page = [
        f'.\\" Made by packaging/generate.py from the help of the commands.\n.Dd {DATE}',
        ".Dt VOLUNTEER 1\n.Os\n.Sh NAME\n.Nm volunteer",
        ".Nd train one language model together with strangers",
        ".Sh SYNOPSIS\n.Nm\n.Ar command\n.Op Ar options\n.Sh DESCRIPTION",
        *_text(str(app.help)),
        ".Pp",
        *_text(epilogue.split("\n\n")[0]),
        ".Sh COMMANDS",
    ]
    settings: dict[str, list[str]] = {}
    for command, block in _commands(lines):
        page += [f".Ss {_escaped(command)}", *_command(block, settings)]
        page += _examples(app, command, epilogue)
    page += [".Sh SETTINGS", *_text("Flags of the commands that say so above.")]
    for title, flags in settings.items():
        page += [".Pp", *_text(f"{title.capitalize()}:"), *flags]
    page += [".Sh ENVIRONMENT", *_list((f".It Ev {k}", v) for k, v in ENVIRONMENT.items())]
    codes = EXIT_CODE.findall(epilogue.split("Exit codes:")[-1])
    page += [".Sh EXIT STATUS", *_list((f".It {code}", f"{words}.") for code, words in codes)]
    return "\n".join(_paragraphs(page)) + "\n"


def _paragraphs(lines: list[str]) -> Iterator[str]:
    """Yield the lines without the paragraph marks that have no text before or after them."""
    last = ""
    for line, after in zip(lines, [*lines[1:], ".Sh"], strict=True):
        if line == ".Pp" and (last[:3] in OPENING or after[:3] in (*OPENING, ".Bl")):
            continue
        last = line
        yield line


def _unfolded(markdown: str) -> list[str]:
    """Return the lines with continued list items joined, and without links and code blocks."""
    lines: list[str] = []
    in_code = False
    for line in markdown.splitlines():
        if line.startswith("```"):
            in_code = not in_code
        elif line.startswith("    ") and lines and lines[-1].startswith("* `"):
            lines[-1] += " " + line.strip()
        elif not in_code and not LINKED_ITEM.match(line):
            lines.append(line)
    return lines


def _commands(lines: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield each command with the lines below its heading; what comes before the first is out."""
    command, block = "", list[str]()
    for line in lines:
        heading = HEADING.fullmatch(line)
        if heading is None:
            block.append(line)
            continue
        if command:
            yield command, block
        command, block = heading["command"], []
    yield command, block


def _command(block: list[str], settings: dict[str, list[str]]) -> Iterator[str]:
    """Yield a command's words and flags; its settings go to ``settings``, by their title."""
    groups: list[tuple[str, list[tuple[str, str]]]] = []
    for line in block:
        group, item = GROUP.fullmatch(line), ITEM.fullmatch(line)
        if group:
            groups.append((group["title"], []))
        elif item and groups:
            groups[-1][1].append((_term(item["term"]), _words(item["words"])))
        elif line.strip() and not groups:
            yield from _text(line)
        elif not groups:
            yield ".Pp"
    for title, items in groups:
        if title == "Commands":
            continue
        if title.startswith(SETTINGS):
            settings.setdefault(title.removeprefix(SETTINGS), _list(items))
        else:
            plain = title in ("Parameters", "Arguments")
            yield from () if plain else (".Pp", *_text(f"{title}:"))
            yield from _list(items)
    if any(title.startswith(SETTINGS) for title, _ in groups):
        yield from (".Pp", *_text("Takes all settings as flags, too."))


def _examples(app: App, command: str, epilogue: str) -> Iterator[str]:
    """Yield what a command's help ends with, less what all commands' help ends with."""
    found = app
    for name in command.split()[1:]:
        found = found[name]
    own = found.help_epilogue or ""
    text = "" if own == epilogue else str(own).removesuffix(epilogue).strip()
    for part in text.split("\n\n") if text else ():
        if examples := EXAMPLE.findall(part):
            yield from _list([(f".It Li {_escaped(line)}", words) for line, words in examples])
        else:
            yield from (".Pp", *_text(part))


def _term(text: str) -> str:
    """Turn ``--out, -o PATH`` into a list item of mdoc."""
    words = text.replace(",", " ,").split()
    macros = []
    for word in words:
        if word.startswith("-"):
            macros.append(f"Fl {_escaped(word[1:])}")
        elif word == ",":
            macros.append(",")
        elif word.endswith("..."):
            macros.append(f"Ar {_escaped(word[:-3].lower())} ...")
        else:
            macros.append(f"Ar {_escaped(word.lower())}")
    return ".It " + " ".join(macros)


def _words(text: str) -> str:
    """Return a description with its remarks (default, choices, required) in plain brackets."""
    if "*[default: False]*" in text or "*[default: ()]*" in text:
        text = text.replace("*[default: False]*", "").replace("*[default: ()]*", "")
    remarks = [a or b for a, b in REMARK.findall(text)]
    plain = REMARK.sub("", text).strip()
    return " ".join([plain, *(f"[{remark}]" for remark in remarks)]).strip()


def _list(items: Iterator[tuple[str, str]] | list[tuple[str, str]]) -> list[str]:
    lines = [".Bl -tag -width Ds"]
    for term, words in items:
        lines += [term, *_text(words)]
    return [*lines, ".El"]


def _text(text: str) -> list[str]:
    """Return lines of text, each sentence on its own, as mdoc wants them."""
    sentences = re.split(r"(?<=[.!?;:]) (?=[A-Z\[])", " ".join(text.split()))
    lines = []
    for sentence in sentences:
        escaped = _escaped(sentence)  # quotes and hyphens get longer
        lines += textwrap.wrap(escaped, WIDTH, break_on_hyphens=False, break_long_words=False)
    return [_guarded(line) for line in lines]


def _guarded(escaped: str) -> str:
    """Return a line that roff does not take for a request."""
    return "\\&" + escaped if escaped.startswith((".", "'")) else escaped


def _escaped(text: str) -> str:
    """Return text in which roff sees no commands; hyphens stay hyphens when copied."""
    return text.replace("\\", "\\e").replace("-", "\\-").replace('"', "\\(dq")
